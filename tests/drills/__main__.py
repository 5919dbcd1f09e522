"""`make drills`: attack what docs/reliability.md promises, and print the figures of its table."""

import argparse
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from drills import kill

NAMES = ("kill", "ranks", "signals", "disk", "hostile")


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
    with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as folder:
        tally = import_module(f"drills.{name}").run(Path(folder), full)
    print(f"{name}: {tally.line()}", *tally.failures, sep="\n  FAILED: ", flush=True)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
