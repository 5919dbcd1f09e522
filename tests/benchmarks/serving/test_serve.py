"""`bench.py serve`: once as a whole, at a size that costs seconds, and what it refuses."""

import json
from pathlib import Path

import pytest

from benchmarks.cli import main
from benchmarks.serve import ENGINE, GENERATE, HTTP, Run, compare
from benchmarks.serving.servers import ALPHABET, start_server
from gpt.errors import GPTError

TINY = ["--shape", "1/2/16", "--window", "32", "--prompt-lengths", "4", "8", "--tokens", "6", "--rounds", "1"]


def test_engine_and_server_answer_the_same_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *TINY, "--concurrency", "3", "--requests", "5", "--rates", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    rows = {Run(row["system"], row["concurrency"], row["rate"]): row for row in found["results"]}
    loops = [(1, 0.0, 2), (3, 0.0, 6), (1, 50.0, 5)]
    assert {one: row["requests"] for one, row in rows.items()} == {
        Run(system, *how): requests for *how, requests in loops for system in (ENGINE, HTTP)
    }
    for row in rows.values():
        assert row["tokens_per_second"][0] > 0
        assert row["first_token_ms"]["p99"] >= row["first_token_ms"]["p50"] > 0
    assert list(found["comparisons"]) == [f"{ENGINE} at 3 over {ENGINE}, 1 at a time", "cost of HTTP at 3, %"]
    assert any("HTTP, 50 requests/s" in line for line in lines)


def test_ratios_are_taken_round_by_round() -> None:
    rates = {Run(ENGINE): [1.0, 2.0], Run(ENGINE, 8): [6.0, 8.0], Run(HTTP): [1.0, 1.0], Run(HTTP, 8): [3.0, 6.0]}
    rates |= {Run(GENERATE): [0.5, 4.0], Run("http://other", 8): [2.0, 4.0], Run("http://other"): [1.0, 1.0]}
    assert compare({one: {"tokens_per_second": each} for one, each in rates.items()}, 8) == {
        f"{ENGINE} at 8 over {ENGINE}, 1 at a time": [6.0, 4.0],
        f"{ENGINE} at 8 over {GENERATE}, 1 at a time": [12.0, 2.0],
        f"{ENGINE} at 8 over http://other, 8 at a time": [3.0, 2.0],
        "cost of HTTP at 8, %": [50.0, 25.0],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--window 100", "--prompt-lengths and --tokens do not fit into the model's window of 100"),
        ("--rates -1", "--rates: -1, expected at least 0"),
        ("--shape 1/2", "--shapes 1/2: expected layers/heads/width"),
    ],
)
def test_mistakes_are_one_line(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["serve", *options.split()])
    except SystemExit as error:
        code = error.code
    error_line = capsys.readouterr().err
    assert code == 2
    assert message in error_line
    assert error_line.count("\n") == 1


def test_a_server_that_dies_is_one_line_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(GPTError, match=r"^the server: .* ended with 2: .*nowhere"),
        start_server(tmp_path / "nowhere", "fp32"),
    ):
        pass


def test_the_vocabulary_is_as_large_as_that_of_tiny_shakespeare() -> None:
    assert len(set(ALPHABET)) == len(ALPHABET) == 65
