"""Training runs on a device without numbers: everything is where it belongs, and no step waits for the device."""

from collections.abc import Callable

import pytest

from fake_cuda.conftest import Reports, facts_of


@pytest.fixture(scope="module")
def reports(run_scenarios: Callable[[str], Reports]) -> Reports:
    return run_scenarios("training")


RUNS = {"bfloat16": (0, 2), "resume": (2, 3), "float16": (0, 2), "resume float16": (2, 3), "adamw": (0, 2)}
"""Their first and last step. Within a step a wait or a float32 matmul is an error of the scenario."""


@pytest.mark.parametrize("run", [*RUNS, "float32"])
def test_a_whole_run_is_on_the_device(reports: Reports, run: str) -> None:
    facts = facts_of(reports, run)
    assert (facts["begin"], facts["end"]) == RUNS.get(run, (0, 2))
    assert facts["evaluated"] == facts["end"]
    assert facts["devices"] == ["cuda:0"]
    assert facts["states"] > 40
    assert facts["fused"] is True
    assert facts["gradients"] == ["torch.float32"]


@pytest.mark.parametrize("run", [*RUNS])
def test_backward_passes_and_muon_multiply_in_half_precision(reports: Reports, run: str) -> None:
    types = facts_of(reports, run)["matmuls"]
    assert types
    assert set(types) <= {"torch.bfloat16", "torch.float16"}


@pytest.mark.parametrize("run", [*RUNS, "float32"])
def test_backward_passes_of_float32_are_in_tf32_and_the_process_is_left_as_it_was(reports: Reports, run: str) -> None:
    facts = facts_of(reports, run)
    assert facts["precisions"] == ["high" if run == "float32" else "highest"]
    assert facts["precision afterwards"] == "highest"


@pytest.mark.parametrize("run", [*RUNS])
def test_batches_come_from_pinned_memory(reports: Reports, run: str) -> None:
    once = {"CombinedOptimizer.load_state_dict", "WeightAverage.load_state_dict", "check_restorable"}
    once |= {"load_weights", "parallelize"}
    of_samples = {"Validation.attention", "sample", "pad"}
    assert set(facts_of(reports, run)["pageable"]) <= once | of_samples


def test_an_evaluation_waits_once(reports: Reports) -> None:
    facts = facts_of(reports, "evaluate")
    assert facts == {"codes": [0, 0], "waits": [1, 1]}


def test_only_the_generator_of_the_runs_device_counts_however_many_are_visible(reports: Reports) -> None:
    assert facts_of(reports, "tried") == {"read": ["cuda:0"]}
    assert facts_of(reports, "moved")["restored"] == ["cuda"]


def test_a_run_that_goes_on_on_the_cpu_says_that_its_generator_stayed_behind(reports: Reports) -> None:
    on_cuda, on_cpu = facts_of(reports, "moved")["said"]
    assert on_cuda == []
    assert [line.partition(" saved")[0] for line in on_cpu] == [
        "another number of processes, or a run on another kind of device,"
    ]
