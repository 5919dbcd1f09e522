from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call

MACHINE = "--bandwidth 2000 --matmul-rate 312000"
LLAMA = f"explain flops --published llama-2-7b {MACHINE}"
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


def test_7_billion_weights_of_two_bytes_at_2000_gigabytes_a_second(run: Call) -> None:
    decode = run(f"{LLAMA} --dtype float16 --prompt-tokens 1 --new-tokens 1 --json").json["decode"]
    assert (decode["bytes_per_second"], decode["flops_per_second"]) == (2e12, 312e12)
    first, *_, last = decode["bounds"]
    assert first["seconds"] == pytest.approx(first["weight_bytes"] / 2e12, rel=1e-3)
    assert first["tokens_per_second"] == pytest.approx(151, abs=1)
    assert (first["limit"], last["batch"], last["limit"]) == ("memory", 256, "arithmetic")


def test_the_defaults_are_those_of_the_run(here: Path, run: Call) -> None:
    def tokens(options: str) -> tuple[int, int, Any]:
        found = run(f"explain flops --json {options}").json
        assert (found["batch"], found["seq"]) == (4, 16)
        return found["generation"]["prompt_tokens"], found["generation"]["new_tokens"], found["decode"]

    prompt, new, decode = tokens("--device cpu")
    assert (prompt, new) == (8, 8)
    assert decode["bytes_per_second"] > 0  # measured
    assert tokens(f"{MACHINE} --new-tokens 12")[0] == 2
    assert tokens(f"{MACHINE} --prompt-tokens 3")[1] == 13
    long = run(f"explain flops --config tiny.yaml model.block_size=1000000000 {MACHINE} --json").json
    assert long["generation"]["new_tokens"] == 500_000_000  # counted at once


def test_the_tables_show_both_ways_and_fit_a_terminal(run: Call) -> None:
    out = run(f"{LLAMA} --prompt-tokens 50 --new-tokens 100").out
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "51", "675,285,565,440", "13,240,893,440", "51.0"] in rows
    assert ["100", "150", "1,993,919,692,800", "13,292,797,952", "150.0"] in rows
    assert "Positions computed: 10,050 without a cache, 150 with one: 67.0 to 1." in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_window_of_one_token_generates_nothing(here: Path, run: Call) -> None:
    line = f"explain flops --config tiny.yaml model.block_size=1 {MACHINE}"
    assert run(f"{line} --json").json["generation"] is None
    titles = {row.split(":")[0].split(" ")[0] for row in run(line).out.splitlines() if ": " in row}
    assert "Training" in titles
    assert "Generating" not in titles
