"""Load: what is sent, and what is made of the times, by hand."""

import numpy as np
import pytest

from benchmarks.serving.load import Answer, poisson_arrivals, random_prompts, summarize_answers, to_json


def test_latencies_and_throughput_by_hand() -> None:
    one = Answer(10.0, [(10.5, 1), (10.6, 1), (11.0, 4)])  # gaps: 0.1, and 4 tokens that share 0.4
    other = Answer(10.2, [(12.0, 2)])  # in one piece
    later = Answer(50.0, [(50.1, 1), (52.0, 1)])
    found = summarize_answers([to_json([one, other])["answers"], to_json([later])["answers"]])
    assert found["requests"] == 3
    assert found["tokens_per_second"] == [8 / 2, 2 / 2]
    first = sorted([500.0, 1800.0, 100.0])
    assert found["first_token_ms"] == pytest.approx({"p50": first[1], "p99": np.percentile(first, 99)})
    gaps = [100.0] * 5 + [1900.0]
    assert found["inter_token_ms"] == pytest.approx({"p50": 100.0, "p99": np.percentile(gaps, 99)})


def test_answers_in_one_piece_have_no_inter_token_latency() -> None:
    found = summarize_answers([to_json([Answer(0.0, [(2.0, 6)])])["answers"]])
    assert found["inter_token_ms"] is None
    assert found["first_token_ms"] == {"p50": 2000.0, "p99": 2000.0}


def test_prompts_are_of_the_wanted_lengths_and_the_same_for_a_seed() -> None:
    alphabet = ["a", "b", "\n"]
    prompts = random_prompts(alphabet, [3, 8], 50, [1, 2])
    assert {len(prompt) for prompt in prompts} == {3, 8}
    assert set("".join(prompts)) == set(alphabet)
    assert prompts == random_prompts(alphabet, [3, 8], 50, [1, 2]) != random_prompts(alphabet, [3, 8], 50, [1, 3])


def test_arrivals_are_a_poisson_process() -> None:
    times = np.array(poisson_arrivals(20.0, 20_000, [7]))
    gaps = np.diff(times, prepend=0.0)
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.03)  # exponential: as large as the mean
    assert poisson_arrivals(20.0, 5, [7]) == times[:5].tolist()
