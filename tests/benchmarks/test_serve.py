"""`bench.py serve`: once as a whole, at a size that costs seconds; its client; what is made of the times, by hand."""

import json

import numpy as np
import pytest

from benchmarks.cli import main
from benchmarks.http_load import Answer, summarize_answers
from benchmarks.serve import Run

TINY = ["--shape", "1/2/16", "--window", "32", "--prompt-lengths", "4", "8", "--tokens", "6", "--rounds", "1"]


def test_server_answers_closed_and_open_loops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *TINY, "--concurrency", "3", "--requests", "5", "--rates", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {Run(row["concurrency"], row["rate"]): row for row in json.loads(lines[-1])["results"]}
    assert {one: row["requests"] for one, row in rows.items()} == {Run(1): 2, Run(3): 6, Run(1, 50.0): 5}
    for row in rows.values():
        assert row["tokens_per_second"][0] > 0
        assert row["first_token_ms"]["p99"] >= row["first_token_ms"]["p50"] > 0
    assert any("50 requests/s" in line for line in lines)


def test_latencies_and_throughput_by_hand() -> None:
    one = Answer(10.0, [(10.5, 1), (10.6, 1), (11.0, 4)])  # gaps: 0.1, and 4 tokens that share 0.4
    other = Answer(10.2, [(12.0, 2)])  # in one piece
    later = Answer(50.0, [(50.1, 1), (52.0, 1)])
    found = summarize_answers([[one, other], [later]])
    assert found["requests"] == 3
    assert found["tokens_per_second"] == [8 / 2, 2 / 2]
    first = sorted([500.0, 1800.0, 100.0])
    assert found["first_token_ms"] == pytest.approx({"p50": first[1], "p99": np.percentile(first, 99)})
    gaps = [100.0] * 5 + [1900.0]
    assert found["inter_token_ms"] == pytest.approx({"p50": 100.0, "p99": np.percentile(gaps, 99)})
    assert summarize_answers([[other]])["inter_token_ms"] is None
