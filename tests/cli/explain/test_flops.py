from pathlib import Path

import pytest

from cli.conftest import Call

LLAMA = "explain flops --published llama-2-7b"
WEIGHTS = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
"""Of 32 blocks with 4 square matrices and 3 of 4096 x 11008."""


def test_a_training_step_by_hand(run: Call) -> None:
    """With a head of 32000 ids; 3 x 100 tokens."""
    summary = run(f"{LLAMA} --batch 3 --seq 100 --json").json
    assert summary["source"] == "llama-2-7b, as published"
    assert summary["forward_parts"] == {
        "linear_layers": 2 * 300 * WEIGHTS,
        "attention": 2 * 2 * 3 * 100 * 100 * 4096 * 32,
        "head": 2 * 300 * 4096 * 32000,
    }
    assert summary["forward"] == sum(summary["forward_parts"].values())
    assert (summary["backward"], summary["training_step"]) == (2 * summary["forward"], 3 * summary["forward"])


def test_generating_100_tokens_after_100_by_hand(run: Call) -> None:
    """6.6 billion weights multiply every position, 32 blocks attend over 4096 numbers."""
    generation = run(f"{LLAMA} --prompt-tokens 100 --new-tokens 100 --json").json["generation"]
    assert (generation["naive_positions"], generation["cached_positions"]) == (15_050, 200)
    weights, attention = 2 * (WEIGHTS + 4096 * 32000), 4 * 4096 * 32
    assert generation["prefill"] == weights * 100 + attention * 100**2
    assert generation["naive"] == weights * 15_050 + attention * sum(length**2 for length in range(101, 201))
    assert generation["cached"] == generation["prefill"] + weights * 100 + attention * sum(range(101, 201))
    assert [step["step"] for step in generation["steps"]] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert generation["ratio"] == pytest.approx(75, abs=1)


def test_the_defaults_are_those_of_the_run(here: Path, run: Call) -> None:
    def tokens(options: str) -> tuple[int, int]:
        found = run(f"explain flops --json {options}").json
        assert (found["batch"], found["seq"]) == (4, 16)
        return found["generation"]["prompt_tokens"], found["generation"]["new_tokens"]

    assert tokens("") == (8, 8)
    assert tokens("--new-tokens 12")[0] == 2
    assert tokens("--prompt-tokens 3")[1] == 13
    long = run("explain flops --config tiny.yaml model.block_size=1000000000 --json").json
    assert long["generation"]["new_tokens"] == 500_000_000  # counted at once


def test_the_tables_show_both_ways_and_fit_a_terminal(run: Call) -> None:
    out = run(f"{LLAMA} --prompt-tokens 50 --new-tokens 100").out
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "51", "675,285,565,440", "13,240,893,440", "51.0"] in rows
    assert ["100", "150", "1,993,919,692,800", "13,292,797,952", "150.0"] in rows
    assert "Positions computed: 10,050 without a cache, 150 with one: 67.0 to 1." in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_window_of_one_token_generates_nothing(here: Path, run: Call) -> None:
    line = "explain flops --config tiny.yaml model.block_size=1"
    assert run(f"{line} --json").json["generation"] is None
    titles = {row.split(":")[0].split(" ")[0] for row in run(line).out.splitlines() if ": " in row}
    assert "Training" in titles
    assert "Generating" not in titles
