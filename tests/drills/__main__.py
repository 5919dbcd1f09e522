"""`make drills`: attack what this project promises, and write what came of it into docs/reliability.md."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from drills.breaks import BREAKS
from drills.frame import COUNT, NAMES, ROOT, load
from drills.processes import Task, run_all, run_inside
from gpt.processor import supported_processors
from gpt.signals import unwinding

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make drills: begin -->", "<!-- written by make drills: end -->"
HEAD = ("| drill | what it shows | figures | processor |", "|---|---|---|---|")
_ROW = re.compile(r"\| ([a-z_]+) \|")


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
        return run_inside(arguments.inside, names, not arguments.quick, arguments.defect)
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
            row = (load(task.name).promise, outcome.line, supported_processors()[0].name)
            PAGE.write_text(update(PAGE.read_text(encoding="utf-8"), {task.name: row}, NAMES), encoding="utf-8")
    return int(failed)


def _self_test(names: list[str]) -> int:
    failed = False
    tasks = [Task(name, False, number) for name in names for number in range(len(BREAKS.get(name, ())))]
    for task, outcome, seconds in run_all(tasks):
        found = bool(outcome.failures) and not outcome.crashed
        failed |= not found
        what = "found" if found else "CRASHED" if outcome.crashed else "NOT FOUND"
        failure = (outcome.failures or ["no failure"])[0]
        failure = failure[-300:] if outcome.crashed else failure[:200]
        assert task.defect is not None
        print(f"{task.name}: {what}: {BREAKS[task.name][task.defect].why} ({seconds:.0f} s): {failure}", flush=True)
    return int(failed)


def update(page: str, rows: dict[str, tuple[str, str, str]], order: Sequence[str]) -> str:
    """Return the page with new rows in its table; rows of other drills stay.

    Args:
        page: the text of the page, with both markers.
        rows: promise, figures and processor by the name of the drill.
        order: names in the order of the table; a row of any other name is dropped.
    """
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert begin, f"the page has no {BEGIN}"
    assert end, f"the page has no {END}"
    lines = {match[1]: line for line in table.splitlines() if (match := _ROW.match(line)) and match[1] != "drill"}
    lines |= {name: f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()}
    return "\n".join((before + BEGIN, *HEAD, *(lines[name] for name in order if name in lines), END + after))


if __name__ == "__main__":
    sys.exit(main())
