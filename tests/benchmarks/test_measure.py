"""Rounds and statistics by hand, and what a machine is called."""

import json

import pytest
import torch

from benchmarks.measure import describe_machine, interleave, processor_class, ratios, show_ratios, summarize
from gpt.system.processor import AMX, GENERIC, NEON, Processor


def test_every_other_round_runs_backwards() -> None:
    lines: list[str] = []
    assert "".join(name for _, name in interleave("abc", 3, lines.append)) == "abccbaabc"
    assert lines == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]


def test_statistics_by_hand() -> None:
    expected = {"mean": 4.0, "deviation": 12.5**0.5, "median": 3, "low": 1.4, "high": 7.6}
    assert summarize([1, 2, 3, 4, 10]) == pytest.approx(expected)
    assert summarize([7.0])["deviation"] is None


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([10, 20], [15, 60]) == [1.5, 3.0]
    assert show_ratios([1.5]) == "1.50"
    assert show_ratios([1.5, 2.0, 1.0]) == "1.50 (1.00-2.00)"


def test_everything_about_the_machine_goes_into_json() -> None:
    found = json.loads(json.dumps(describe_machine()))
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["cpu"]
    assert found["versions"]["torch"] in torch.__version__


@pytest.mark.parametrize(
    ("own", "acts_as", "name"), [(AMX, None, "AMX"), (AMX, "AVX2", "AMX as AVX2"), (NEON, "NEON", "NEON")]
)
def test_a_processor_has_the_class_of_its_best_instructions(
    own: Processor, acts_as: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt.system.processor.supported_processors", lambda: [own, GENERIC])
    monkeypatch.setenv("GPT_PROCESSOR", acts_as or "")
    assert processor_class("cpu") == name


def test_a_card_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device}")
    assert processor_class("cuda:1") == "CUDA card cuda:1"
