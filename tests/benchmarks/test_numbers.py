"""What is made of times, by hand: statistics, rows of decoding and training steps, what nanoGPT
prints.
"""

import argparse
import json
import os

import numpy as np
import pytest
import torch

from benchmarks import decode
from benchmarks.decoders import Entrant
from benchmarks.http_load import Answer, summarize_answers
from benchmarks.measure import describe_machine, processor_class, ratios, show_ratios, summarize
from gpt.system.processor import AMX, GENERIC
from tiny import tiny_config


def test_statistics_and_ratios_of_rounds() -> None:
    expected = {"mean": 4.0, "deviation": 12.5**0.5, "median": 3, "low": 1.4, "high": 7.6}
    assert summarize([1, 2, 3, 4, 10]) == pytest.approx(expected)
    assert summarize([7.0])["deviation"] is None
    assert ratios([10, 20], [15, 60]) == [1.5, 3.0]
    assert show_ratios([1.5]) == "1.50"
    assert show_ratios([1.5, 2.0, 1.0]) == "1.50 (1.00-2.00)"


def test_machine_has_the_class_of_its_best_instructions_or_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpt.system.processor.supported_processors", lambda: [AMX, GENERIC])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device}")
    names = []
    for acts_as in ("", "AMX", "AVX2"):
        monkeypatch.setenv("GPT_PROCESSOR", acts_as)
        names.append(processor_class("cpu"))
    assert [*names, processor_class("cuda:1")] == ["AMX", "AMX", "AMX as AVX2", "CUDA card cuda:1"]
    # The cores that this process may use, of which the machine may have more.
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 5}, raising=False)
    found = json.loads(json.dumps(describe_machine()))
    machine = found["machine"]
    assert machine["cores"] == 3
    assert machine["cpu"]
    assert found["versions"]["torch"] in torch.__version__


def entrant(weights: str, is_peer: bool = False) -> Entrant:
    return Entrant(lambda idx, params: [], weights, 1000, is_peer)


def row(
    name: str,
    ticks: dict[str, list[list[float]]],
    entrants: dict[str, Entrant],
    prompt: int,
    tokens: int,
) -> dict:
    sizes = argparse.Namespace(device="cpu", prompt_length=prompt, tokens=tokens)
    return decode.row_of(name, entrants, ticks, tiny_config(), 2, sizes)


def test_peer_is_compared_with_our_row_of_as_many_bits() -> None:
    found = {
        "native": (entrant("float32"), [1.0, 2.0], "native", [1.0, 1.0]),
        "native-int8": (entrant("int8"), [0.5, 0.5], "native", [0.5, 0.25]),
        "eager": (entrant("float32"), [8.0, 8.0], "native", [8.0, 4.0]),
        "llama.cpp Q8_0": (entrant("int8", is_peer=True), [1.0, 2.0], "native-int8", [2.0, 4.0]),
        "other": (entrant("int4", is_peer=True), [1.0, 2.0], "native", [1.0, 1.0]),
    }
    ticks = {name: [[0.0, one] for one in seconds] for name, (_, seconds, _, _) in found.items()}
    for name, (_, _, baseline, times) in found.items():
        one = row(name, ticks, {key: each[0] for key, each in found.items()}, 3, 4)
        assert (name, one["times_of"], one["times"]) == (name, baseline, times)
        assert one["prompt_tokens_per_second"] is None


def test_latencies_and_throughput_by_hand() -> None:
    one = Answer(10.0, [(10.5, 1), (10.6, 1), (11.0, 4)])  # gaps: 0.1, and 4 tokens that share 0.4
    other = Answer(10.2, [(12.0, 2)])  # in one piece
    later = Answer(50.0, [(50.1, 1), (52.0, 1)])
    found = summarize_answers([[one, other], [later]])
    assert found["requests"] == 3
    assert found["tokens_per_second"] == [8 / 2, 2 / 2]
    first = sorted([500.0, 1800.0, 100.0])
    assert found["first_token_ms"] == pytest.approx(
        {"p50": first[1], "p99": np.percentile(first, 99)}
    )
    gaps = [100.0] * 5 + [1900.0]
    assert found["inter_token_ms"] == pytest.approx({"p50": 100.0, "p99": np.percentile(gaps, 99)})
    assert summarize_answers([[other]])["inter_token_ms"] is None
