"""`make drills`: attack what this project promises, and write what came of it into docs/reliability.md."""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from drills.frame import NAMES, ROOT, load
from drills.page import update
from drills.processes import broken_checkout, run_inside, run_process

PAGE = ROOT / "docs" / "reliability.md"


def main() -> int:
    """Return 0, or 1 if a drill failed, or a self-test's drill did not."""
    arguments = _parse()
    names = arguments.drills.split(",") if arguments.drills else list(NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        print(f"error: there is no drill {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if arguments.inside:
        return run_inside(arguments.inside, names, not arguments.quick)
    if arguments.self_test:
        return _self_test(names)
    return _run(names, not arguments.quick)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("--drills", metavar="A,B,...", help=f"some of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="at the small scale of tests; the page is not written")
    parser.add_argument("--self-test", action="store_true", help="show that each drill fails on builds that are broken")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # this process is the drill's own
    return parser.parse_args()


def _run(names: list[str], full: bool) -> int:
    rows, failed = {}, False
    for name in names:
        drill = load(name)
        outcome = run_process(name, full, drill.minutes)
        failed |= bool(outcome.failures)
        print(f"{name}: {outcome.line}", *outcome.failures, sep="\n  FAILED: ", flush=True)
        if full and not outcome.failures:
            rows[name] = (drill.promise, outcome.line, _processor())
            PAGE.write_text(update(PAGE.read_text(encoding="utf-8"), rows, NAMES), encoding="utf-8")
    return int(failed)


def _self_test(names: list[str]) -> int:
    failed = False
    for name in names:
        drill = load(name)
        for defect in drill.breaks:
            if defect.needs is not None and find_spec(defect.needs) is None:
                print(f"{name}: NOT POSSIBLE HERE without {defect.needs}: {defect.why}", flush=True)
                continue
            with broken_checkout(defect) as root:
                outcome = run_process(name, False, drill.minutes, root)
            found = bool(outcome.failures) and not outcome.crashed
            failed |= not found
            what = "found" if found else "CRASHED" if outcome.crashed else "NOT FOUND"
            print(f"{name}: {what}: {defect.why}: {(outcome.failures or ['no failure'])[0][:200]}", flush=True)
    return int(failed)


def _processor() -> str:
    from gpt.processor import supported_processors

    return supported_processors()[0].name


if __name__ == "__main__":
    sys.exit(main())
