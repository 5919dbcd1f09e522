"""Training and decoding behind a device boundary have the numbers of the CPU: the CUDA tests, on a device of tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cuda import library
from patience import PATIENCE

HERE = Path(__file__).parent
CHOSEN = (
    "planted or losses_are_those_of_the_cpu or (continues and dtype0) or (tokens_are and eager and rope) "
    "or cache_changes or beams or test_views"
)
COUNT = 14


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = library.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    return library.build(compiler, tmp_path_factory.mktemp("boundary"), HERE / "device.cpp")


def test_numbers_are_those_of_the_cpu(built: Path) -> None:
    """Of training, decoding and views; and what the device must refuse is refused."""
    tests = HERE.parent
    paths = (str(tests.parent), str(tests), os.environ.get("PYTHONPATH", ""))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "boundary.run", str(built), str(HERE / "planted.py"), str(tests / "cuda")]
    command += ["-k", CHOSEN]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    progress = "".join(re.findall(r"^([.sxF]+) +\[", result.stdout, re.MULTILINE))
    assert progress == "." * COUNT, result.stdout
