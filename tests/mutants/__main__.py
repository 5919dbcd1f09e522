"""`make mutants`: plant small faults in the core, one at a time, and list those that no test finds.

Of each part of the core some faults are drawn, always the same ones. The tests that run the changed
line are run, those that run the least code first, until one fails. The result, a line of JSON for
each fault, is for `--before`: after a change, the tests must find what they found.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from queue import Queue
from typing import Any

from mutants.edits import Edit, edits_of
from mutants.native import faults

ROOT = Path(__file__).parents[2]
PARTS = {
    "model/*.py": 30,
    "training/*.py": 80,
    "checkpoint/*.py": 30,
    "generation/*.py": 65,
    "data/*.py": 45,
    "config/*.py": 25,
    "extras/serving/**/*.py": 25,
}
"""Parts of the core, and how many faults are drawn from each."""
QUICK = ("--hypothesis-profile", "quick", "-m", "not slow and not browser and not compiler")
NATIVE = ("tests/native", "--hypothesis-profile", "quick", "-m", "not slow")
OF_SOURCES = "tests/native/test_fingerprint.py"
"""Compares the files with what was recorded of them, and so would find every edit."""
SECONDS = 60
NATIVE_SECONDS = 600
"""For a test, which has failed if it does not end; those of C++ compile."""


def drawn() -> list[Edit]:
    """Return the faults that are planted, the same ones for the same functions."""
    found = []
    for pattern, count in PARTS.items():
        files = sorted((ROOT / "gpt").glob(pattern))
        edits = [
            edit
            for file in files
            for edit in edits_of(str(file.relative_to(ROOT)), file.read_text("utf-8"))
        ]
        found += sorted(edits, key=lambda edit: edit.rank)[:count]
    return found


def measure_coverage(file: Path, tests: list[str]) -> None:
    """Run the quick tests, or those in some folders, and write which lines each of them runs."""
    options = ["--cov=gpt", "--cov-context=test", "--cov-report=", *QUICK]
    command = [sys.executable, "-m", "pytest", "-n", "auto", *options, *tests]
    subprocess.run(
        command, cwd=ROOT, check=True, env=environment(ROOT) | {"COVERAGE_FILE": str(file)}
    )


def tests_by_line(file: Path) -> dict[str, dict[int, list[str]]]:
    """Return, by file and line, the tests that run it, those that run the fewest lines first."""
    from coverage.numbits import numbits_to_nums

    rows = sqlite3.connect(file).execute(
        "select file.path, context.context, numbits from line_bits join file on file_id = file.id "
        "join context on context_id = context.id where context != ''"
    )
    runs = [
        (str(Path(path).relative_to(ROOT)), test.split("|")[0], numbits_to_nums(bits))
        for path, test, bits in rows
    ]
    size = Counter[str]()
    for _, test, lines in runs:
        size[test] += len(lines)
    found: dict[str, dict[int, list[str]]] = {}
    for path, test, lines in sorted(runs, key=lambda run: (size[run[1]], run[1])):
        for line in lines:
            tests = found.setdefault(path, {}).setdefault(line, [])
            if test not in tests[-1:] and not test.startswith(OF_SOURCES):
                tests.append(test)
    return found


def environment(root: Path) -> dict[str, str]:
    """Return an environment in which everything comes from one copy of the project."""
    own = {
        "PYTHONPATH": f"{root}:{root / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **own, "XDG_CACHE_HOME": str(root / "build" / "cache")}


def failing(root: Path, tests: list[str], first: bool, seconds: int) -> list[str]:
    """Return the tests that fail in a copy of the project: the first, or all.

    Few are tried before many, since collecting the files of a thousand takes longer than what most
    faults need.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-rf",
        f"--timeout={seconds}",
        "--no-header",
    ]
    found: list[str] = []
    for part in filter(None, (tests[:15], tests[15:100], tests[100:])):
        try:
            done = subprocess.run(
                [*command, *part, *(["-x"] if first else [])],
                cwd=root,
                env=environment(root),
                timeout=30 * seconds,
                check=False,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            found.append("(no end)")
        else:
            names = [
                line.split(" ")[1]
                for line in done.stdout.splitlines()
                if line.startswith(("FAILED ", "ERROR "))
            ]
            found += names or ([] if done.returncode in (0, 5) else ["(all)"])
        if found and first:
            break
    return found


def try_edit(root: Path, edit: Edit, tests: list[str], first: bool, seconds: int) -> dict[str, Any]:
    """Plant a fault in a copy of the project, and return what found it."""
    path = root / edit.file
    whole = path.read_text("utf-8")
    path.write_text(edit.source, "utf-8")
    try:
        found = failing(root, tests, first, seconds) if tests else []
    finally:
        path.write_text(whole, "utf-8")
    return {
        "file": edit.file,
        "name": edit.name,
        "line": edit.lines[0],
        "tests": len(tests),
        "found": found,
    }


def main() -> int:
    """Return 0, or 1 where a fault is not found that was found before."""
    arguments = _parse_arguments()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    edits = faults(ROOT) if arguments.native else drawn()
    edits = [edit for edit in edits if arguments.only in edit.file]
    tests = _choose_tests(edits, arguments)
    results = []
    with arguments.output.open("w", encoding="utf-8") as lines:
        for result in _try_edits(edits, tests, arguments):
            results.append(result)
            print(json.dumps(result), file=lines, flush=True)
            if not result["found"]:
                place = f"{result['file']}:{result['line']} {result['name']}"
                print(f"not found ({result['tests']} tests): {place}")
    found = {(row["file"], row["name"]) for row in results if row["found"]}
    print(f"{len(found)} of {len(results)} faults were found")
    if arguments.before is None:
        return 0
    rows = map(json.loads, arguments.before.read_text("utf-8").splitlines())
    lost = [row for row in rows if row["found"] and (row["file"], row["name"]) not in found]
    lost = [row for row in lost if arguments.only in row["file"]]
    for row in lost:
        print(f"LOST: {row['file']} {row['name']}, which {row['found'][0]} found")
    return 1 if lost else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("tests", nargs="*", help="folders of tests; default: all that are quick")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "mutants.jsonl", metavar="FILE"
    )
    parser.add_argument("--before", type=Path, metavar="FILE", help="the result of a former run")
    parser.add_argument(
        "--coverage", type=Path, metavar="FILE", help="lines by test, as a former run left them"
    )
    parser.add_argument(
        "--all", action="store_true", help="do not stop at the first test that fails"
    )
    parser.add_argument(
        "--native", action="store_true", help="the faults of the C++ sources instead"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="faults of files with this in their path"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N")
    return parser.parse_args()


def _choose_tests(edits: list[Edit], arguments: argparse.Namespace) -> list[list[str]]:
    """Return the tests of each fault: in C++ the same for all, else those that run its lines."""
    if arguments.native:
        return [[*NATIVE] for _ in edits]
    coverage = arguments.coverage or arguments.output.with_suffix(".coverage")
    if not coverage.exists():
        measure_coverage(coverage, arguments.tests)
    by_line = tests_by_line(coverage)
    chosen = []
    for edit in edits:
        of_file = by_line.get(edit.file, {})
        tests = chain.from_iterable(of_file.get(line, []) for line in edit.lines)
        chosen.append(list(dict.fromkeys(tests)))  # each once, in order
    return chosen


def _try_edits(
    edits: list[Edit], tests: list[list[str]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Plant each fault, in as many copies of the project as there are workers; yield results."""
    seconds = NATIVE_SECONDS if arguments.native else SECONDS
    copies: Queue[Path] = Queue()

    def run(edit: Edit, chosen: list[str]) -> dict[str, Any]:
        root = copies.get()
        try:
            return try_edit(root, edit, chosen, not arguments.all, seconds)
        finally:
            copies.put(root)

    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(arguments.workers) as pool,
    ):
        for number in range(arguments.workers):
            copies.put(copy_project(Path(folder) / str(number)))
        yield from pool.map(run, edits, tests)


def copy_project(root: Path) -> Path:
    """Copy the tracked files to a folder, as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    return root


if __name__ == "__main__":
    sys.exit(main())
