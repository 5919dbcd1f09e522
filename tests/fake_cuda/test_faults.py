"""The device sees a planted fault of each kind."""

from collections.abc import Callable

import pytest

from fake_cuda.conftest import Reports


@pytest.fixture(scope="module")
def reports(run_scenarios: Callable[[str], Reports]) -> Reports:
    return run_scenarios("faults")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("wrong device", "FakeTensorDeviceMismatchError: Expected all tensors to be on the same device"),
        ("read in the training step", "HiddenSync: read in Stepper.step"),
        ("copy in the training step", "HiddenSync: copy to host in Stepper.step"),
        ("float32 in the training step", "Float32Matmul: aten.mm in MLP.forward"),
        ("read in the decode step", "HiddenSync: read in Block.forward"),
        ("read in a graph", "HiddenSync: read in Block.forward"),
    ],
)
def test_a_fault_is_seen(reports: Reports, fault: str, error: str) -> None:
    assert reports[fault].get("error", "").startswith(error), reports[fault]
