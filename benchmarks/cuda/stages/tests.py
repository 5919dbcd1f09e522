"""The tests that need the device, by pytest."""

import re
import subprocess
import sys

from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.workload import ROOT, Workload
from benchmarks.processes import environment

OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-o", "timeout=0", "-rA")
"""Of this project's own, only what any pytest knows: another interpreter may lack the plugins."""
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")


def run(workload: Workload) -> StageResult:
    """Run `tests/cuda`; each failure is a problem."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-k", workload.tests, str(ROOT / "tests" / "cuda")]
    variables = {**environment(), "GPT_TEST_DEVICE": workload.device}
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    lines = result.stdout.splitlines()
    counts = {what: int(number) for number, what in COUNT.findall(lines[-1] if lines else "")}
    problems = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if result.returncode != 0 and not problems:
        problems = [f"pytest ended with {result.returncode}: {(result.stderr or result.stdout).strip()[-300:]}"]
    if not counts.get("passed"):
        problems.append("no test passed")
    rows = [(what, str(number)) for what, number in counts.items()]
    return StageResult("tests/cuda", ("tests", "number"), rows, {"counts": counts, "output": lines[-40:]}, problems)
