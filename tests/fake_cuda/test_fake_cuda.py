"""Training and decoding on a device without numbers: what is refused on CUDA is not done, and no step waits for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_cuda import library
from patience import PATIENCE
from variants import VARIANTS

TESTS = Path(__file__).resolve().parents[1]
RUNS = {"bfloat16": (0, 2), "bfloat16 resumed": (2, 3), "float16": (0, 2), "float16 resumed": (2, 3), "adamw": (0, 2)}
"""Their first and last step. Within a step a wait or a float32 matmul is an error of the scenario."""
EVERY_RUN = {**RUNS, "float32": (0, 2), "deterministic run": (0, 2)}
ONCE = {"CombinedOptimizer.load_state_dict", "WeightAverage.load_state_dict", "check_restorable", "load_weights"}
ONCE |= {"parallelize", "Validation.attention", "sample", "pad"}
"""Functions that copy from memory that is not pinned, at the start of a run or for a sample."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By scenario: {"facts": ...} of one that came to its end, {"error": ..., "trace": ...} of another."""
    compiler = library.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("fake_cuda")
    paths = os.pathsep.join(filter(None, (str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fake_cuda.scenarios", str(library.build(compiler, folder)), str(folder)]
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return found


def facts_of(reports: dict[str, dict[str, Any]], scenario: str) -> dict[str, Any]:
    """Return what a scenario reports; its traceback is the message where it failed."""
    report = reports[scenario]
    assert "facts" in report, "\n".join([report["error"], *report["trace"]])
    facts: dict[str, Any] = report["facts"]
    return facts


@pytest.mark.parametrize("run", EVERY_RUN)
def test_a_whole_run_is_on_the_device(reports: dict[str, Any], run: str) -> None:
    facts, (begin, end) = facts_of(reports, run), EVERY_RUN[run]
    assert facts["steps"] == [begin, end, end]
    assert (facts["devices"], facts["gradients"], facts["fused"]) == (["cuda:0"], ["torch.float32"], True)
    assert facts["states"] > 40
    assert facts["precisions"] == ["high" if run == "float32" else "highest"]  # TF32
    assert facts["precision afterwards"] == "highest"


@pytest.mark.parametrize("run", RUNS)
def test_backward_passes_and_muon_are_in_half_precision_and_batches_in_pinned_memory(
    reports: dict[str, Any], run: str
) -> None:
    facts = facts_of(reports, run)
    assert facts["matmuls"]
    assert set(facts["matmuls"]) <= {"torch.bfloat16", "torch.float16"}
    assert set(facts["pageable"]) <= ONCE


def test_an_evaluation_waits_once(reports: dict[str, Any]) -> None:
    assert facts_of(reports, "evaluate") == {"codes": [0, 0], "waits": [1, 1]}


def test_only_the_generator_of_the_runs_device_counts_however_many_are_visible(reports: dict[str, Any]) -> None:
    assert facts_of(reports, "tried") == {"read": ["cuda:0"]}
    facts = facts_of(reports, "moved")
    assert facts["restored"] == ["cuda"]
    on_cuda, on_cpu = facts["said"]
    assert on_cuda == []
    assert [line.partition(" saved")[0] for line in on_cpu] == [
        "another number of processes, or a run on another kind of device,"
    ]


@pytest.mark.parametrize("kind", ["eager", "compiled", "int8 cache"])
def test_a_token_waits_once_for_itself(reports: dict[str, Any], kind: str) -> None:
    facts = facts_of(reports, kind)
    assert facts["replays"] is (kind == "compiled")
    assert facts["tokens"] == [20, 20, 20]
    assert facts["waits"] == ["sample_tokens"]


def test_nothing_is_asked_for_that_has_no_deterministic_implementation(reports: dict[str, Any]) -> None:
    assert facts_of(reports, "variants") == {"steps": len(VARIANTS)}
    names = facts_of(reports, "names")["names"]
    assert {"cumsum", "nll_loss2d", "scatter_reduce", "put", "histc", "avg_pool3d", "upsample"} <= set(names)
    assert not {"gather", "index_put", "scatter_add"} & set(names)  # these are computed in another, deterministic way


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("read in the training step", "HiddenSync: read in Stepper.step"),
        ("copy in the training step", "HiddenSync: copy to host in Stepper.step"),
        ("float32 in the training step", "Float32Matmul: aten.mm in MLP.forward"),
        ("read in a eager token", "HiddenSync: read in Block.forward"),
        ("read in a compiled token", "HiddenSync: read in Block.forward"),
        ("refused in a deterministic step", "RuntimeError: aten.cumsum.default does not have a deterministic impl"),
    ],
)
def test_a_planted_fault_is_seen(reports: dict[str, Any], fault: str, error: str) -> None:
    assert reports[fault].get("error", "").startswith(error), reports[fault]
