"""Start a command as a process of its own, which Ctrl-C may interrupt while it is imported."""

import faulthandler
import gc
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import NoReturn


def start(module: str) -> NoReturn:
    """Import a command's module, run its `main`, and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback
    with suppress(
        RuntimeError, OSError, ValueError
    ):  # standard error is closed, or has no descriptor
        faulthandler.enable()
    try:
        command = import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("gpt", "benchmarks"):  # a bug, and no other Python
            raise
        remedy = "in a clone, run make setup and start with .venv/bin/python"
        print(f"error: {package} is not installed for {sys.executable}; {remedy}", file=sys.stderr)
        sys.exit(2)
    code = command.main()
    gc.freeze()  # looking for garbage once more would take half a second
    sys.exit(code)
