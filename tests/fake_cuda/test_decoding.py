"""Decoding on a device without numbers: a step waits for nothing, a token once, for itself."""

from collections.abc import Callable

import pytest

from fake_cuda.conftest import Reports, facts_of


@pytest.fixture(scope="module")
def reports(run_scenarios: Callable[[str], Reports]) -> Reports:
    return run_scenarios("decoding")


KINDS = {
    "eager": "eager, fp32 cache",
    "eager, rows of one length": "eager, fp32 cache",
    "compiled": "compiled, fp32 cache",
    "compiled, fp16 cache": "compiled, fp16 cache",
    "int8 cache": "eager, int8 cache",
    "no cache": "eager, no cache",
}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_go_past_the_window_and_a_token_waits_once(reports: Reports, kind: str) -> None:
    facts = facts_of(reports, kind)
    assert facts["name"] == KINDS[kind]
    assert facts["tokens"] == [10, 10, 10]
    assert facts["waits of a token"] == {"StepDecoder.step: copy to host": 1}
    assert (facts["replays"] > 0) is kind.startswith("compiled")


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_rows_leave_a_batch(reports: Reports, backend: str) -> None:
    assert facts_of(reports, f"rows leave, {backend}") == {"rows": [3, 2, 1]}


def test_beams_and_scores(reports: Reports) -> None:
    assert facts_of(reports, "search") == {"beams": [4, 4, 4], "scored": 29}


def test_weights_of_fewer_bits(reports: Reports) -> None:
    assert facts_of(reports, "fewer bits") == {"bf16": 3, "int8": 3, "int4": 3}


def test_the_command(reports: Reports) -> None:
    codes = facts_of(reports, "commands")
    assert len(codes) == 5
    assert set(codes.values()) == {0}
