import json
from pathlib import Path
from typing import Any

import pytest

from gpt.cli import explain

MACHINE = ["--bandwidth", "2000", "--matmul-rate", "312000"]
LLAMA = ["--published", "llama-2-7b", *MACHINE]


def summary_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert explain.main(["flops", *options, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_training_step(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 32 blocks of 4 square matrices and 3 of 4096 x 11008, a head of 32000 ids; 3 x 100 tokens."""
    summary = summary_of(capsys, *LLAMA, "--batch", "3", "--seq", "100")
    assert summary["source"] == "llama-2-7b, as published"
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert summary["forward_parts"] == {
        "linear_layers": 2 * 300 * linear,
        "attention": 2 * 2 * 3 * 100 * 100 * 4096 * 32,
        "head": 2 * 300 * 4096 * 32000,
    }
    assert summary["forward"] == sum(summary["forward_parts"].values())
    assert (summary["backward"], summary["training_step"]) == (2 * summary["forward"], 3 * summary["forward"])


def test_generating_100_tokens_after_100(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 6.6 billion weights multiply every position, 32 blocks attend over 4096 numbers."""
    generation = summary_of(capsys, *LLAMA, "--prompt-tokens", "100", "--new-tokens", "100")["generation"]
    assert (generation["naive_positions"], generation["cached_positions"]) == (15_050, 200)
    weights = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000)
    attention = 4 * 4096 * 32
    assert generation["prefill"] == weights * 100 + attention * 100**2
    assert generation["naive"] == weights * 15_050 + attention * sum(length**2 for length in range(101, 201))
    assert generation["cached"] == generation["prefill"] + weights * 100 + attention * sum(range(101, 201))
    assert [step["step"] for step in generation["steps"]] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert generation["ratio"] == pytest.approx(75, abs=1)


def test_7_billion_weights_of_two_bytes_at_2000_gigabytes_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    decode = summary_of(capsys, *LLAMA, "--dtype", "float16", "--prompt-tokens", "1", "--new-tokens", "1")["decode"]
    assert decode["bytes_per_second"] == 2e12
    assert decode["flops_per_second"] == 312e12
    first, *_, last = decode["bounds"]
    assert first["seconds"] == pytest.approx(first["weight_bytes"] / 2e12, rel=1e-3)
    assert first["tokens_per_second"] == pytest.approx(151, abs=1)
    assert (first["limit"], last["batch"], last["limit"]) == ("memory", 256, "arithmetic")


def test_the_defaults_are_those_of_the_run(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    summary = summary_of(capsys, "--device", "cpu")
    assert (summary["batch"], summary["seq"]) == (4, 16)
    assert (summary["generation"]["prompt_tokens"], summary["generation"]["new_tokens"]) == (8, 8)
    assert summary["decode"]["bytes_per_second"] > 0  # measured
    assert summary_of(capsys, *MACHINE, "--new-tokens", "12")["generation"]["prompt_tokens"] == 2
    assert summary_of(capsys, *MACHINE, "--prompt-tokens", "3")["generation"]["new_tokens"] == 13


def test_the_tables_show_both_ways_and_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["flops", *LLAMA, "--prompt-tokens", "50", "--new-tokens", "100"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "51", "675,285,565,440", "13,240,893,440", "51.0"] in rows
    assert ["100", "150", "1,993,919,692,800", "13,292,797,952", "150.0"] in rows
    assert "Positions computed: 10,050 without a cache, 150 with one: 67.0 to 1." in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_window_of_one_token_has_nothing_to_generate(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.yaml").write_text("model: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 1}\n", encoding="utf-8")
    options = ["--config", "one.yaml", *MACHINE]
    summary = summary_of(capsys, *options)
    assert (summary["seq"], summary["generation"], summary["decode"]["keys"]) == (1, None, 1)
    assert explain.main(["flops", *options]) == 0
    titles = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ": " in line]
    assert "Training" in titles
    assert not any(title.startswith("Generating") for title in titles)
    assert explain.main(["flops", *options, "--new-tokens", "1"]) == 2
    assert "block_size 1 has no room for new tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", "0"], "--batch is 0, expected 1 to 1,000,000 (sequences)"),
        (["--seq", "4097"], "--seq is 4,097, expected 1 to 4,096 (block_size)"),
        (["--seq", "-1"], "--seq is -1, expected 1 to 4,096"),
        (["--prompt-tokens", "0"], "--prompt-tokens is 0"),
        (["--prompt-tokens", "4096"], "--prompt-tokens is 4,096, expected 1 to 4,095 (what block_size leaves)"),
        (["--new-tokens", "0"], "--new-tokens is 0"),
        (
            ["--prompt-tokens", "4000", "--new-tokens", "97"],
            "--new-tokens is 97, expected 1 to 96 (what block_size leaves)",
        ),
        (["--new-tokens", "4096"], "--new-tokens is 4,096, expected 1 to 4,095"),
        (["--new-tokens", "-99999"], "--new-tokens is -99,999, expected 1 to 4,095"),
        (["--bandwidth", "0"], "--bandwidth is 0"),
        (["--matmul-rate", "nan"], "--matmul-rate is nan, expected a number above 0"),
        (["--device", "tpu"], "device tpu: expected auto"),
        (["--bandwidth", "inf"], "--bandwidth is inf"),
        (["--config", "a.yaml"], "--published and --config are two models"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert explain.main(["flops", *LLAMA, *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
