"""How this process was called, and the spelling of other commands that follows from it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

DISTRIBUTION = "glassgpt"
"""What pip calls the package; `gpt` is somebody else's name on the index."""
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
_SCRIPT_OF = {"new": "make_config"}
"""The scripts that are not called like their command."""


def program() -> str:
    """Return what stands before the name of a command, `gpt` or `python -m gpt`."""
    return _joined(*_program("")[:-1])


def command(name: str, *options: str | Path) -> str:
    """Return a command line as the user would write it who called this process: by a script, by `gpt` or by `-m gpt`.

    Quoted for the shell. In a program that is none of these, such as a notebook, it is one that runs there.
    """
    return _joined(*_program(name), *map(str, options))


def extra(name: str) -> str:
    """Return the command that installs an extra of the package for the Python that runs, quoted for the shell."""
    from importlib.metadata import Distribution

    is_installed = any(Distribution.discover(name=DISTRIBUTION))
    what = [DISTRIBUTION] if is_installed else ["-e", str(SCRIPTS.parent)]  # a clone that is run as it is
    return _joined(_python(), "-m", "pip", "install", *what[:-1], f"{what[-1]}[{name}]")


def _program(name: str) -> list[str]:
    called = Path(sys.argv[0])
    script = called.with_name(f"{_SCRIPT_OF.get(name, name.replace('-', '_'))}.py")
    if called.parent.resolve() == SCRIPTS and script.is_file():
        return [_python(), str(script)]
    found = Path(shutil.which("gpt") or "").absolute().with_suffix("")  # Windows has gpt.exe
    if called.name == "gpt":
        return ["gpt" if found == called.absolute() else str(called), name]
    is_module = called.name == "__main__.py"
    if not is_module and found == Path(sys.executable).with_name("gpt"):
        return ["gpt", name]
    return [_python(), "-m", "gpt", name]


def _python() -> str:
    """Return this Python as it was typed, if that means it here."""
    typed = shutil.which(sys.orig_argv[0]) if sys.orig_argv else None
    return sys.orig_argv[0] if typed and Path(typed).absolute() == Path(sys.executable) else sys.executable


def _joined(*words: str) -> str:
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
