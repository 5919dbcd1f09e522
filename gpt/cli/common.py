"""What every command line shares: how it ends, and how it speaks."""

import argparse
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from gpt.errors import GPTError

SPINS = "8000"
"""How often torch's idle threads look for work before they sleep; its OpenMP library reads it when it is loaded.

By default they look for milliseconds. Where another process takes a core, that uses up their share of it, and they do
not run when there is work: a step took 7 times as long as on a quiet machine, with this it takes 2 to 3 times as long.
It costs about 8% of a step where nothing else runs.
"""


def run_command(command: Callable[[], int]) -> int:
    """Run a command and turn what can happen into an exit code.

    0: done. 2, or what the error says: a user's mistake, in one line. 130: Ctrl-C. A closed pipe ends
    quietly. Anything else is a bug and keeps its traceback.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character; that is no reason to end
    try:
        code = command()
        sys.stdout.flush()
        return code
    except GPTError as error:
        print(f"error: {error}", file=sys.stderr)
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
        print(f"error: out of memory; lower the batch or the sizes of the model ({reason})", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _silence_output()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: in Python, in NumPy, or in torch, which raises RuntimeError on a CPU."""
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _silence_output() -> None:
    """Let the exit of the process not try again to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(line: str) -> None:
    """One line for the user, beside the output, and above a progress bar where there is one."""
    with contextlib.suppress(OSError):  # whoever read it is gone; that is no reason to lose a run
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


def read_text(path: str) -> str:
    """The text of a UTF-8 file, or of standard input for -.

    Raises:
        GPTError: it cannot be read.
    """
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise GPTError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        name = "standard input" if path == "-" else path
        raise GPTError(f"{name} is not UTF-8 text (byte {error.start})") from None


class CommandParser(argparse.ArgumentParser):
    """Parse a command line; the help ends with an example, and a mistake is one line, as everywhere else.

    Args:
        description: what the command does, a sentence.
        example: a whole command line.
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
    """Add a subcommand to what `add_subparsers` gave; `summary` is its line in the list and heads its own help."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=summary, description=summary, example=example)
    return parser


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    """`--weights`."""
    parser.add_argument(
        "--weights", choices=("float32", "bf16", "int8", "int4"), help="bits of the blocks' weights (default: as saved)"
    )


def add_checkpoint_options(parser: argparse.ArgumentParser, with_device: bool = True) -> None:
    """`--checkpoint`, `--runs` and `--device`."""
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="run folder, checkpoint folder, or best/last inside a run; default: the newest run",
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of run folders (default: runs)")
    if with_device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
