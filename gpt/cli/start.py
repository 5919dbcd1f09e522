"""Start a command as a process of its own, which Ctrl-C may interrupt while it imports its modules."""

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn


def start(module: str) -> NoReturn:
    """Import a command's module, run its `main`, and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback
    _warn_of_shadow()
    sys.exit(import_module(module).main())


def _warn_of_shadow() -> None:
    """Report what notebooks and Python programs in this folder would import in place of the package."""
    own = Path(__file__).parents[1] / "__init__.py"
    for path in (Path("gpt", "__init__.py"), Path("gpt.py")):  # in the order in which Python looks
        if path.is_file() and not path.samefile(own) and sys.stderr is not None:
            name = "gpt.py" if path.name == "gpt.py" else "the folder gpt"
            warning = f"warning: {name} in {Path.cwd()} hides the package from programs here that import gpt; rename it"
            print(warning, file=sys.stderr)
            return
