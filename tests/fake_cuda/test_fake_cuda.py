"""Training and decoding on a device without numbers: what is refused on CUDA is not done, and no step waits for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cuda import library, refusals
from fake_cuda.scenarios import SCENARIOS
from patience import PATIENCE

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was wrong with each scenario, with its traceback; empty if nothing was."""
    compiler = library.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("fake_cuda")
    paths = os.pathsep.join(filter(None, (str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fake_cuda.scenarios", str(library.build(compiler, folder)), str(folder)]
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    found: dict[str, str] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_on_another_device_waits_or_is_refused(reports: dict[str, str], name: str) -> None:
    assert reports[name] == ""


def test_what_is_refused_is_still_found_in_the_documentation_of_torch() -> None:
    assert {"cumsum", "nll_loss2d", "scatter_reduce", "put"} <= set(refusals.NAMES)
