"""Rows of a decoding measurement, by hand."""

import argparse

import pytest

from benchmarks.decode import row_of
from benchmarks.decoders import Entrant
from gpt.cache.kv_cache import cache_bytes
from tiny import tiny_config


def entrant(weights: str, is_peer: bool = False) -> Entrant:
    return Entrant(lambda idx, params: [], weights, 1000, is_peer)


def row(name: str, ticks: dict[str, list[list[float]]], entrants: dict[str, Entrant], prompt: int, tokens: int) -> dict:
    sizes = argparse.Namespace(device="cpu", prompt_length=prompt, tokens=tokens)
    return row_of(name, entrants, ticks, tiny_config(), 2, sizes)


@pytest.mark.parametrize(
    ("name", "baseline", "times"),
    [
        ("native", "native", [1.0, 1.0]),
        ("native-int8", "native", [0.5, 0.25]),
        ("eager", "native", [8.0, 4.0]),
        ("llama.cpp Q8_0", "native-int8", [2.0, 4.0]),
        ("other", "native", [1.0, 1.0]),
    ],
)
def test_a_peer_is_compared_with_our_row_of_as_many_bits(name: str, baseline: str, times: list[float]) -> None:
    found = {
        "native": (entrant("float32"), [1.0, 2.0]),
        "native-int8": (entrant("int8"), [0.5, 0.5]),
        "eager": (entrant("float32"), [8.0, 8.0]),
        "llama.cpp Q8_0": (entrant("int8", is_peer=True), [1.0, 2.0]),
        "other": (entrant("int4", is_peer=True), [1.0, 2.0]),
    }
    ticks = {key: [[0.0, one] for one in seconds] for key, (_, seconds) in found.items()}
    one = row(name, ticks, {key: who for key, (who, _) in found.items()}, 3, 4)
    assert (one["times_of"], one["times"]) == (baseline, times)
    assert one["prompt_tokens_per_second"] is None


def test_what_a_decoder_shows_step_by_step() -> None:
    one = row("a", {"a": [[10.0, 12.0, 13.0, 13.5, 13.5]]}, {"a": entrant("float32")}, 8, 3)
    config = tiny_config()
    assert one["first_seconds"] == 2.0
    assert one["prompt_tokens_per_second"] == 2 * 8 / 2.0
    assert one["tokens_per_second"] == pytest.approx(2 * 3 / 3.5)
    assert one["bytes_per_second"] == pytest.approx(3 / 3.5 * (1000 + cache_bytes(config, 2, 9, "fp32")))


def test_with_one_token_all_of_a_peers_time_is_prefill() -> None:
    one = row("a", {"a": [[0.0, 0.5]]}, {"a": entrant("float32")}, 8, 1)
    assert one["prompt_tokens_per_second"] == 2 * 8 / 0.5
