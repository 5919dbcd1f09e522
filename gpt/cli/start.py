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
    # While modules are imported, Ctrl-C ends the process without a traceback. A process that was
    # started to ignore it, as under `nohup`, goes on to do so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A crash of native code writes the stacks of all threads, unless standard error is closed or
    # has no descriptor.
    with suppress(RuntimeError, OSError, ValueError):
        faulthandler.enable()
    try:
        command = import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("gpt", "benchmarks"):
            # A module of our own is missing: that is a bug, and not the wrong Python.
            raise
        remedy = "in a clone, run make setup and start with .venv/bin/python"
        print(f"error: {package} is not installed for {sys.executable}; {remedy}", file=sys.stderr)
        sys.exit(2)
    code = command.main()
    # Python looks for garbage once more at exit, which would take half a second.
    gc.freeze()
    sys.exit(code)
