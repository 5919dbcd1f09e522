"""Commands that are printed for the user to paste, in the form in which this one was typed."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_SCRIPTS = Path(__file__).parents[2] / "scripts"
"""In a clone: a script for each command."""
_FILES = {"new": "make_config"}
"""Commands whose script has another name."""


def command_line(name: str = "", *options: str) -> str:
    """Return a command of this package as a line to paste where the running command was typed.

    In a process that is no command of the package, such as a notebook, the line begins with `gpt`.
    """
    words = [*_started(name), *options]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def _started(name: str) -> list[str]:
    """Return the words that start a command.

    They are `gpt NAME`, `python -m gpt NAME` or `python scripts/NAME.py`.
    """
    named = [name] if name else []
    # sys.orig_argv has all words: Python and its options, the program, and the program's options.
    # sys.argv has only the program and its options. So all words up to the program are as many as
    # sys.orig_argv is longer, and one for the program itself.
    num_typed = len(sys.orig_argv) - len(sys.argv) + 1
    typed = sys.orig_argv[:num_typed]
    # `python -m gpt`, or `python -m gpt.cli.train`; sys.argv has the module's file in its place.
    is_module = len(typed) >= 2 and typed[-2] == "-m"
    if is_module and typed[-1].partition(".")[0] == "gpt":
        return [*typed[:-1], "gpt", *named]
    if typed[-1:] != sys.argv[:1]:
        # The program that runs has changed sys.argv, so that nothing is known.
        return ["gpt", *named]
    program = Path(sys.argv[0])
    if program.suffix == ".py" and program.resolve().parent == _SCRIPTS:
        file = _FILES.get(name, name.replace("-", "_"))
        return [*typed[:-1], str(program.with_name(f"{file}.py"))]
    if program.name in ("gpt", "gpt.exe") and not _is_found("gpt", program):
        # The shell would start another gpt, or none: the command was typed with its folder.
        return [str(program), *named]
    return ["gpt", *named]


def _is_found(name: str, program: Path) -> bool:
    """Return whether a shell finds this program by its name alone."""
    found = shutil.which(name)
    return found is not None and Path(found).absolute() == program.absolute()
