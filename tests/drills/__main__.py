"""`make drills`: attack what docs/reliability.md promises, and print the figures of its table.

A drill is a module with a generator `run(folder, full)`. For each attack it yields the figure that
the attack counts for if it was survived, a description of the attack, and what went wrong, empty if
nothing did.
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
PROGRESS_SECONDS = 20.0
"""Seconds between two lines about a drill that runs."""


def main() -> int:
    """Return 0, or 1 if a drill failed."""
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument(
        "--drills", metavar="A,B,...", default=",".join(NAMES), help="some of %(default)s"
    )
    parser.add_argument("--quick", action="store_true", help="at the small scale of tests")
    parser.add_argument(
        "--count", type=int, metavar="N", default=kill.COUNT, help="kills of a run that went back"
    )
    arguments = parser.parse_args()
    kill.COUNT = arguments.count
    names = arguments.drills.split(",")
    for name in names:
        if name not in NAMES:
            parser.error(f"there is no drill {name!r}; there are {', '.join(NAMES)}")
    if len(names) == 1:
        return run(names[0], not arguments.quick)
    # each drill in a process of its own: one that has threads may not fork
    command = [sys.executable, "-m", "drills", "--count", str(arguments.count)]
    if arguments.quick:
        command.append("--quick")
    codes = [subprocess.run([*command, "--drills", name], check=False).returncode for name in names]
    return max(codes)


def run(name: str, full: bool) -> int:
    """Run a drill, and print its figures; return 0, or 1 if it failed."""
    figures = Counter[str]()
    failures: list[str] = []
    printed = time.monotonic()
    drill = import_module(f"drills.{name}")
    with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as folder:
        for figure, attack, wrong in drill.run(Path(folder), full):
            if wrong:
                failures.append(f"{attack}: {wrong}")
            else:
                figures[figure] += 1
            if time.monotonic() > printed + PROGRESS_SECONDS:
                print(f"{name}: {summary(figures, failures)}", file=sys.stderr, flush=True)
                printed = time.monotonic()
    print(f"{name}: {summary(figures, failures)}", *failures, sep="\n  FAILED: ", flush=True)
    return 1 if failures else 0


def summary(figures: Counter[str], failures: list[str]) -> str:
    """Return the figures of a drill, and the number of its failures, in a line."""
    counts = {**figures, "lost": len(failures)}
    return ", ".join(f"{count:,} {figure}" for figure, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
