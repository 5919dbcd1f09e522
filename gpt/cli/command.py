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
from gpt.system.progress import announce_if_slow, print_line
from gpt.system.signals import WATCHED, Stopped, handling, unwinding

report = print_line
MAX_NAME_LENGTH = 400
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
    is_output_lost = sys.stdout is None
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    try:
        with unwinding():
            _require_readable_words()
            code = command()
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except Stopped as stopped:
        return stopped.code
    except Exception as error:
        mistake = _code_of_mistake(error)
        if mistake is None:
            raise
        return mistake
    if is_output_lost:
        report("warning: standard output is closed; the output is lost")
    return code


def _open_closed_streams() -> None:
    """Open the streams that the caller has closed, so that what is written to them is lost.

    Otherwise the next file that is opened would get the descriptor of one of them.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _code_of_mistake(error: Exception) -> int | None:
    """Report what a user can do about an error, and return the exit code; None: it is a bug."""
    match error:
        case PeerError():  # the other process reports it
            return error.exit_code
        case GPTError():
            report(f"error: {_sanitized(str(error))}")
            return error.exit_code
        case BrokenPipeError():  # the reader has seen enough, as `head` does
            _silence_output()
            return 0
        case OSError():
            return _code_of_system_error(error)
        case MemoryError() | RuntimeError() if _is_out_of_memory(error):
            remedy = (
                "lower train.batch_size or --batch-size, model.block_size or the size of the model"
            )
            report(f"error: out of memory; {remedy} ({first_line(error)})")
            return 2
    return None


def _code_of_system_error(error: OSError) -> int | None:
    """Report a path that cannot be used, or an output that cannot be written; None: a bug."""
    if error.filename is not None and error.errno in _BAD_PATH:
        report(f"error: {quoted(str(error.filename), MAX_NAME_LENGTH)}: {error.strerror}")
        return 2
    if error.errno in _CANNOT_WRITE:
        _silence_output()
        report(f"error: cannot write the output: {error.strerror}")
        return 2
    return None


def _require_readable_words() -> None:
    """Raise ConfigError for a command line that Python has not read as UTF-8, as it was told."""
    encoding = sys.getfilesystemencoding()
    # bytes that Python could not decode are half surrogate pairs, which UTF-8 text never has
    is_decoded = not re.search("[\ud800-\udfff]", "".join(sys.argv))
    if encoding != "utf-8" and not is_decoded:
        raise ConfigError(
            f"the command line is read as {encoding}; set PYTHONUTF8=1, so that it is read as UTF-8"
        )


def _sanitized(message: str) -> str:
    """Escape control characters and line ends, but those before the indented lines of a list."""
    return "\n  ".join(quoted(line, most=len(line)) for line in message.split("\n  "))


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    if issubclass(category, GPTWarning):
        report(f"warning: {message}")
    else:
        report(warnings.formatwarning(message, category, filename, lineno).rstrip())


def _report_thread_error(arguments: threading.ExceptHookArgs) -> None:
    """Report in one line that a thread cannot write, as TensorBoard's on a full disk.

    Any other error is a bug and keeps its traceback.
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
    with announce_if_slow(report, "loading torch"), handling(WATCHED, signal.SIG_DFL):
        load("torch")


def load(module: str) -> None:
    """Import a module without the garbage collector, which then passes over it for good.

    Looking for garbage in what stays would take half as long as importing it.
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
            for way, thing in ways.items():
                if way in self._option_string_actions:
                    message += f"; {thing} is given by {way}"
        print(f"error: {_sanitized(message)}; see {self.prog} --help", file=sys.stderr)
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
            if meant is None:
                key = did_you_mean(tuple(name.split(".")))
            else:
                key = f"; did you mean {meant}?"
            return f" (keys of the configuration have no dashes{key})"
        return ""
