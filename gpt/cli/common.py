"""What all commands share: options, messages and exit codes."""

import argparse
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

from gpt.config import LoadedConfig, load_config
from gpt.errors import ConfigError, GPTError
from gpt.progress import announced

STANDARD_INPUT = Path("-")
SPINS = "8000"
"""How often torch's idle threads poll for work before they sleep (GOMP_SPINCOUNT; OpenMP reads it on loading).

By default they poll for milliseconds. If another process needs a core, the polling uses up their share of it, and they
do not run when there is work: a step took 7 times as long as on an idle machine, and 2 to 3 times with this value. It
costs about 8% of a step if nothing else runs.
"""


_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF}
_BAD_PATH = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}


def run_command(command: Callable[[], int]) -> int:
    """Run a command, including the parsing of its options, and return its exit code.

    0: done. 2, or the error's own code: a user's mistake, in one line. 130: Ctrl-C. A closed pipe ends the
    command quietly. Any other exception is a bug and keeps its traceback.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    try:
        code = command()
        sys.stdout.flush()
        return code
    except GPTError as error:
        report(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _silence_output()
        return 0
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        report(f"error: out of memory; lower the batch or the sizes of the model ({reason})")
        return 2
    except OSError as error:
        if error.filename is not None and error.errno in _BAD_PATH:
            report(f"error: {error.filename}: {error.strerror}")
        elif error.errno in _CANNOT_WRITE:
            _silence_output()
            report(f"error: cannot write the output: {error.strerror}")
        else:
            raise
        return 2


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed: in Python, in NumPy, or in torch, which raises RuntimeError on a CPU."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _replace_closed_streams() -> None:
    """Open the null device in place of closed standard streams; otherwise the next file would get their descriptor."""
    if sys.stdin is None:  # it stays None: a command that reads it raises an error
        os.open(os.devnull, os.O_RDONLY)
    missing = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    for name in missing:
        setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    if "stdout" in missing:
        report("warning: standard output is closed; what would be printed is lost")


def _silence_output() -> None:
    """Keep Python from writing buffered output again at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(line: str) -> None:
    """Print one line for the user on standard error, above a progress bar if there is one."""
    with contextlib.suppress(OSError):  # a closed terminal must not end a run
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


def load_torch() -> None:
    """Import torch, and report a line if that takes long, as from a cold disk."""
    with announced(report, "loading torch"):
        import_module("torch")


def standard_input() -> TextIO:
    """Return standard input.

    Raises:
        GPTError: it is closed.
    """
    if sys.stdin is None:
        raise GPTError("standard input is closed; there is nothing to read")
    return sys.stdin


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, or of standard input for -, without a byte order mark.

    Raises:
        GPTError: it cannot be read.
    """
    is_input = path == STANDARD_INPUT
    name = "standard input" if is_input else path
    try:
        data = standard_input().buffer.read() if is_input else path.read_bytes()
        return data.decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise GPTError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise GPTError(f"{name} is not UTF-8 text (byte {error.start})") from None


def not_empty(text: str) -> str:
    """Return the value of an option that must not be empty, as an unset shell variable would make it."""
    if not text:
        raise argparse.ArgumentTypeError("expected a value, got an empty text")
    return text


def to_path(text: str) -> Path:
    """Return the path of an option that names a file or folder."""
    return Path(not_empty(text))


class CommandParser(argparse.ArgumentParser):
    """Parse a command line; the help ends with an example, and a mistake gives one line.

    Args:
        description: what the command does, as a sentence.
        example: a complete command line.
        kwargs: see `argparse.ArgumentParser`.
    """

    def __init__(self, description: str, example: str, **kwargs: Any) -> None:
        super().__init__(
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        print(f"error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def add_command(subparsers: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Add a subcommand to the result of `add_subparsers`; `summary` appears in the list and in its own help."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=summary, description=summary, example=example)
    return parser


def add_config_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add `--config` and overrides."""
    parser.add_argument(
        "--config", type=to_path, required=required, metavar="FILE", help="YAML file, such as configs/quickstart.yaml"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values that replace the file's")


def read_config(arguments: argparse.Namespace) -> LoadedConfig:
    """Return the configuration that the options of `add_config_options` give.

    Raises:
        ConfigError: see `load_config`; or a key is overridden twice.
    """
    check_overrides(arguments.overrides)
    return load_config(arguments.config, arguments.overrides)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise ConfigError if a key is overridden twice."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"command line: {key} is given twice; leave one of them out")


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    """Add `--weights`."""
    parser.add_argument(
        "--weights",
        choices=("float32", "bf16", "int8", "int4"),
        help="format of the blocks' weights (default: as saved)",
    )


def add_checkpoint_options(parser: argparse.ArgumentParser, with_device: bool = True) -> None:
    """Add `--checkpoint`, `--runs` and `--device`."""
    parser.add_argument(
        "--checkpoint",
        type=to_path,
        metavar="PATH",
        help="run folder, checkpoint folder, or best/last inside a run; default: the newest run",
    )
    parser.add_argument(
        "--runs", type=to_path, default="runs", metavar="DIR", help="folder of run folders (default: runs)"
    )
    if with_device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
