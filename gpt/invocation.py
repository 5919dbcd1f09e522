"""How this process was called, and the spelling of other commands that follows from it."""

import os
import re
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
_IS_WINDOWS = os.name == "nt"


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
    from importlib.util import find_spec

    found = Distribution.discover(name=DISTRIBUTION)
    is_installed = any(each.read_text("RECORD") is not None for each in found)  # not what a build left in a clone
    what = [DISTRIBUTION] if is_installed else ["-e", str(SCRIPTS.parent)]  # a clone that is run as it is
    python = _python()
    pip = [python, "-m", "pip", "install"] if find_spec("pip") else ["uv", "pip", "install", "--python", python]
    return _joined(*pip, *what[:-1], f"{what[-1]}[{name}]")


def _program(name: str) -> list[str]:
    called, found = Path((sys.argv and sys.argv[0]) or "-c"), shutil.which("gpt")  # a prompt has none
    script = called.with_name(f"{_SCRIPT_OF.get(name, name.replace('-', '_'))}.py")
    if script.is_file() and called.parent.resolve() == SCRIPTS:
        return [_python(), str(script)]
    installed = Path(found).absolute().with_suffix("") if found else None  # Windows has gpt.exe
    if called.name == "gpt" and installed == called.absolute():
        return ["gpt", name]
    if called.name == "gpt" and not _needs_call_operator(str(called)):
        return [str(called), name]
    is_module = called.name == "__main__.py"
    if not is_module and installed == Path(sys.executable).with_name("gpt"):
        return ["gpt", name]
    return [_python(), "-m", "gpt", name]


def _python() -> str:
    """Return this Python as it was typed, if that means it here."""
    typed = shutil.which(sys.orig_argv[0]) if sys.orig_argv else None
    python = sys.orig_argv[0] if typed and Path(typed).absolute() == Path(sys.executable) else sys.executable
    return "py" if _needs_call_operator(python) else python


def _needs_call_operator(program: str) -> bool:
    """Return whether PowerShell would take a program for a text, since it must be quoted, and cmd would run it."""
    return _IS_WINDOWS and _joined(program) != program


def _joined(*words: str) -> str:
    """Quote words for the shell.

    On Windows they are quoted so that cmd and PowerShell agree, but for %, $, ` and quotation marks in a word, which
    each expands in its own way.
    """
    if not _IS_WINDOWS:
        return shlex.join(words)
    return " ".join(
        f'"{word}"' if re.search(r"[&|<>^();,'{}@#]", word) and " " not in word else subprocess.list2cmdline([word])
        for word in words
    )
