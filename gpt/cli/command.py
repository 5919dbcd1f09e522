"""Run a command: its parser, its messages, and its exit code."""

import argparse
import errno
import gc
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from gpt.system.errors import ConfigError, GPTError, GPTWarning, PeerError, first_line, quoted
from gpt.system.idle_threads import poll_seldom_if_busy
from gpt.system.progress import announced, print_line
from gpt.system.signals import WATCHED, Stopped, handling, unwinding

report = print_line
MOST_OF_A_NAME = 400
"""Characters of a file's name that are printed."""
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF}
_BAD_PATH = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}


def run_command(command: Callable[[], int]) -> int:
    """Run a command, including the parsing of its options, and return its exit code.

    0: done. 2, or the error's own code: a user's mistake, in one line. 130, 143 or 129: stopped by
    Ctrl-C, SIGTERM or SIGHUP. A closed pipe ends the command quietly. Any other exception is a bug
    and keeps its traceback.
    """
    warnings.showwarning = _show_warning
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _report_thread_error
    lost = sys.stdout is None
    for name in ("stdout", "stderr"):
        if (
            getattr(sys, name) is None
        ):  # closed, and the next file that is opened would get its descriptor
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    try:
        with unwinding():
            _require_readable_words()
            code = command()
            sys.stdout.flush()
        if lost:
            report("warning: standard output is closed; the output is lost")
        return code
    except Stopped as stopped:
        return stopped.code
    except PeerError as error:
        return error.exit_code
    except GPTError as error:
        report(f"error: {_on_its_lines(str(error))}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _silence_output()
        return 0
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        remedy = "lower train.batch_size or --batch-size, model.block_size or the size of the model"
        report(f"error: out of memory; {remedy} ({first_line(error)})")
        return 2
    except OSError as error:
        if error.filename is not None and error.errno in _BAD_PATH:
            report(f"error: {quoted(str(error.filename), MOST_OF_A_NAME)}: {error.strerror}")
        elif error.errno in _CANNOT_WRITE:
            _silence_output()
            report(f"error: cannot write the output: {error.strerror}")
        else:
            raise
        return 2


def _require_readable_words() -> None:
    """Raise ConfigError for a command line that Python has not read as UTF-8, as it was told."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and any(
        "\ud800" <= char <= "\udfff" for word in sys.argv for char in word
    ):
        raise ConfigError(
            f"the command line is read as {encoding}; set PYTHONUTF8=1, so that it is read as UTF-8"
        )


def _on_its_lines(message: str) -> str:
    """Keep a name from beginning a line or steering the terminal; a list keeps its indented lines."""
    return "\n  ".join(quoted(line, most=len(line)) for line in message.split("\n  "))


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    own = issubclass(category, GPTWarning)
    report(
        f"warning: {message}"
        if own
        else warnings.formatwarning(message, category, filename, lineno).rstrip()
    )


def _report_thread_error(arguments: threading.ExceptHookArgs) -> None:
    """Report in one line that a thread cannot write, as TensorBoard's on a full disk; keep any
    other traceback.
    """
    error = arguments.exc_value
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE | _BAD_PATH:
        report(f"warning: a background thread cannot write: {error.strerror}")
    else:
        threading.__excepthook__(arguments)


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a plain RuntimeError on a CPU
    said = (
        "out of memory",
        "can't allocate memory",
        "calculation overflowed",
        "multiplication overflow",
    )
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)


def _silence_output() -> None:
    """Prevent Python from writing buffered output again at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def load_torch() -> None:
    """Import torch, and report a line if that takes long, as from a cold disk."""
    poll_seldom_if_busy()
    # torch goes on without NumPy if a signal's handler raises while it imports that
    with announced(report, "loading torch"), handling(WATCHED, signal.SIG_DFL):
        load("torch")


def load(module: str) -> None:
    """Import a module that stays: looking for garbage in it, now and later, would take half as long
    as importing it.
    """
    gc.disable()
    import_module(module)
    gc.freeze()
    gc.enable()


class CommandParser(argparse.ArgumentParser):
    """Ends the help with examples, one per line, and reports a mistake in one line."""

    def __init__(self, description: str, example: str, **kwargs: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(
            description=description, formatter_class=layout, allow_abbrev=False, **kwargs
        )
        examples = (f"  {self.prog} {line}".rstrip() for line in example.split("\n"))
        self.epilog = "\n".join(["example:", *examples])

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--?)?([\w.-]*)(=)?", message)
        if unknown and unknown[1]:
            message += self._hint(unknown[2], has_value=unknown[3] is not None)
        elif unknown:
            ways = {"--prompt": "a prompt", "--checkpoint": "a run"}
            taken = [
                f"{thing} is given by {way}"
                for way, thing in ways.items()
                if way in self._option_string_actions
            ]
            message = "; ".join([message, *taken])
        print(f"error: {_on_its_lines(message)}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _hint(self, name: str, has_value: bool) -> str:
        """Return the option or the key that was probably meant by `--name`, for the end of a
        message.
        """
        from gpt.config.suggestions import did_you_mean, option_meant

        with_keys = any(action.dest == "overrides" for action in self._actions)
        meant = option_meant(name, self._option_string_actions, with_keys)
        if meant is not None and meant.startswith("-"):
            return f"; did you mean {meant}?"
        if with_keys and (meant is not None or has_value):
            key = (
                f"; did you mean {meant}?"
                if meant is not None
                else did_you_mean(tuple(name.split(".")))
            )
            return f" (keys of the configuration have no dashes{key})"
        return ""
