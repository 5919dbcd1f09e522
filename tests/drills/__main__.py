"""`make drills`: attack what docs/reliability.md promises, and print the figures of its table.

A drill is a module with a generator `run(folder, full)` of triples: the figure that an attack counts for if it was
survived, what it was, and what is wrong; an empty text is nothing wrong.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from drills import kill

NAMES = ("kill", "disk", "server")
EVERY = 20.0
"""Seconds between two lines about a drill that runs."""


def main() -> int:
    """Return 0, or 1 if a drill failed."""
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("--drills", metavar="A,B,...", default=",".join(NAMES), help="some of %(default)s")
    parser.add_argument("--quick", action="store_true", help="at the small scale of tests")
    parser.add_argument("--count", type=int, metavar="N", default=kill.COUNT, help="kills of a run that went back")
    arguments = parser.parse_args()
    names, kill.COUNT = arguments.drills.split(","), arguments.count
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no drill {unknown.pop()!r}; there are {', '.join(NAMES)}")
    if len(names) == 1:
        return run(names[0], not arguments.quick)
    options = ["--count", str(arguments.count), *(["--quick"] if arguments.quick else [])]
    command = [sys.executable, "-m", "drills", *options, "--drills"]  # each in a process that has no threads yet
    return max([subprocess.run([*command, name], check=False).returncode for name in names])


def run(name: str, full: bool) -> int:
    figures, failures, printed = Counter[str](), list[str](), time.monotonic()

    def line() -> str:
        return ", ".join(f"{value:,} {figure}" for figure, value in {**figures, "lost": len(failures)}.items())

    with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as folder:
        for figure, what, wrong in import_module(f"drills.{name}").run(Path(folder), full):
            if wrong:
                failures.append(f"{what}: {wrong}")
            else:
                figures[figure] += 1
            if time.monotonic() > printed + EVERY:
                print(f"{name}: {line()}", file=sys.stderr, flush=True)
                printed = time.monotonic()
    print(f"{name}: {line()}", *failures, sep="\n  FAILED: ", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
