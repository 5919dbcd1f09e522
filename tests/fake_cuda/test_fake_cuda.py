"""Training and decoding on a device without numbers: what is refused on CUDA is not done, and no
step waits for it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fake_cuda.scenarios import SCENARIOS
from gpt.native.build import find_compilers
from patience import PATIENCE

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was wrong with each scenario, with its traceback; empty if nothing was."""
    # A compiler that links torch's C++ library: zig brings one of its own.
    compiler = next((compiler for compiler in find_compilers() if not compiler.is_zig), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("fake_cuda")
    package = Path(torch.__file__).parent
    source = Path(__file__).with_name("no_op_cuda.cpp")
    library = str(folder / "no_op_cuda.so")
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{package / 'include'}"]
    subprocess.run([*compiler.command, *flags, str(source), "-o", library], check=True)
    libraries = [str(package / "lib/libc10.so"), str(package / "lib/libtorch_cpu.so"), library]
    command = [sys.executable, "-m", "fake_cuda.scenarios", str(folder), *libraries]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    found: dict[str, str] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_on_another_device_waits_or_is_refused(
    reports: dict[str, str], name: str
) -> None:
    assert reports[name] == ""
