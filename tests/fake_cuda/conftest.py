"""Processes with a fake CUDA device, started once for all tests of a file."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_cuda import library
from patience import PATIENCE

TESTS = Path(__file__).resolve().parents[1]
Reports = dict[str, dict[str, Any]]
"""By scenario: {"facts": ...} of one that came to its end, {"error": ..., "trace": ...} of another."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The no-op backend, compiled."""
    compiler = library.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    return library.build(compiler, tmp_path_factory.mktemp("no_op_cuda"))


@pytest.fixture(scope="module")
def run_scenarios(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reports]:
    """Call it with the name of a module of scenarios: one process runs all of them."""

    def run(name: str) -> Reports:
        folder = tmp_path_factory.mktemp(name)
        paths = (str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", ""))
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "fake_cuda.run", str(built), f"fake_cuda.scenarios.{name}", str(folder)]
        result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert result.returncode == 0, result.stderr[-4000:]
        reports: Reports = json.loads(result.stdout)
        return reports

    return run


def facts_of(reports: Reports, scenario: str) -> dict[str, Any]:
    """What a scenario reports; its traceback where it failed."""
    report = reports[scenario]
    assert "facts" in report, "\n".join([report["error"], *report["trace"]])
    facts: dict[str, Any] = report["facts"]
    return facts
