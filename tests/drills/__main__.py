"""`make drills`: attack what this project promises, and write what came of it into docs/reliability.md."""

import argparse
import os
import re
import sys
from pathlib import Path

from drills.breaks import BREAKS
from drills.frame import COUNT, NAMES, ROOT, load
from drills.processes import Task, run_all, run_inside
from gpt.processor import supported_processors
from gpt.signals import unwinding

PAGE = ROOT / "docs" / "reliability.md"


def main() -> int:
    """Return 0, or 1 if a drill failed, or a self-test's drill did not."""
    arguments = _parse()
    names = arguments.drills.split(",") if arguments.drills else list(NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        print(f"error: there is no drill {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if arguments.count is not None:
        os.environ[COUNT] = str(arguments.count)
    if arguments.inside:
        return run_inside(arguments.inside, Task(names[0], not arguments.quick, arguments.defect))
    with unwinding():  # so that a signal ends the drills too, which have sessions of their own
        return _self_test(names) if arguments.self_test else _run(names, not arguments.quick)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("--drills", metavar="A,B,...", help=f"some of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="at the small scale of tests; the page is not written")
    parser.add_argument("--count", type=int, metavar="N", help="repeat what these drills repeat so often")
    parser.add_argument("--self-test", action="store_true", help="show that drills fail where the package is broken")
    # this process is the drill's own
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--defect", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(names: list[str], full: bool) -> int:
    failed = False
    for task, outcome, seconds in run_all([Task(name, full) for name in names]):
        failed |= bool(outcome.failures)
        print(f"{task.name}: {outcome.line} ({seconds:.0f} s)", *outcome.failures, sep="\n  FAILED: ", flush=True)
        if full and COUNT not in os.environ and not outcome.failures:
            cells = (load(task.name).promise, outcome.line, supported_processors()[0].name)
            PAGE.write_text(update(PAGE.read_text(encoding="utf-8"), task.name, *cells), encoding="utf-8")
    return int(failed)


def _self_test(names: list[str]) -> int:
    failed = False
    for task, outcome, seconds in run_all([Task(name, False, i) for name in names for i in range(len(BREAKS[name]))]):
        found = bool(outcome.failures) and not outcome.crashed
        failed |= not found
        what = "found" if found else "CRASHED" if outcome.crashed else "NOT FOUND"
        failure = (outcome.failures or ["no failure"])[0]
        failure = failure[-300:] if outcome.crashed else failure[:200]
        assert task.defect is not None
        print(f"{task.name}: {what}: {BREAKS[task.name][task.defect].why} ({seconds:.0f} s): {failure}", flush=True)
    return int(failed)


def update(page: str, name: str, *cells: str) -> str:
    """Return the page with another row for a drill, which has one already."""
    row = f"| {name} | {' | '.join(cells)} |"
    changed, found = re.subn(rf"^\| {name} \|.*$", lambda match: row, page, flags=re.MULTILINE)
    assert found == 1, f"the page has {found} rows of the drill {name}"
    return changed


if __name__ == "__main__":
    sys.exit(main())
