"""Start a command as a process of its own, which Ctrl-C may interrupt while it imports its modules."""

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn


def start(module: str) -> NoReturn:
    """Import a command's module, run its `main`, and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback
    with suppress(RuntimeError, OSError, ValueError):  # standard error is closed, or has no descriptor
        faulthandler.enable()
    _warn_of_shadow()
    sys.exit(import_module(module).main())


def _warn_of_shadow() -> None:
    """Report what notebooks and Python programs in this folder would import in place of the package."""
    if os.environ.get("LOCAL_RANK", "0") != "0" or sys.stderr is None:
        return
    places = [Path("gpt", "__init__.py"), Path("gpt.py")]  # in the order in which Python looks
    if any(getattr(finder, "__module__", "").startswith("__editable___glassgpt") for finder in sys.meta_path):
        places.append(Path("gpt"))  # the finder of an editable installation comes after any folder
    with suppress(OSError):  # a folder that may not be entered, or a working folder that is deleted
        found = next((path for path in places if (path.is_file() if path.suffix else path.is_dir())), None)
        if found is not None and not Path("gpt", "invocation.py").exists():  # another copy of this package
            name = "gpt.py" if found.name == "gpt.py" else "the folder gpt"
            warning = f"warning: {name} in {Path.cwd()} hides the package from programs here that import gpt; rename it"
            print(warning, file=sys.stderr)
