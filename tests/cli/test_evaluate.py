"""Evaluating a run, and the commands beside it: preparing its corpus, plotting its curves."""

import json
import math
from pathlib import Path

import pytest
import torch

import gpt
from cli.conftest import Call, Refuse
from tiny import CORPUS, loss_by_definition

PROTOCOLS = {"full": 16, "sliding --stride 3": 3}
"""Tokens between the windows of a protocol; 16 is block_size, so that windows are adjacent."""


def test_full_and_sliding_protocols_score_what_training_did(here: Path, run: Call) -> None:
    rows = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = [row["val/loss"] for row in rows if "val/loss" in row][-1]
    full = run("evaluate --checkpoint runs/tiny/last --device cpu").json
    # Both compute in float32, even if the processor has instructions for bfloat16.
    assert full["loss"] == pytest.approx(logged, abs=1e-6)
    model, tokenizer = gpt.load("runs/tiny/last", "cpu")
    text = Path("corpus.txt").read_text(encoding="utf-8")
    ids = torch.from_numpy(tokenizer.encode(text[int(0.9 * len(text)) :]))
    sliding = run("evaluate --checkpoint runs/tiny/last --protocol sliding --stride 3").json
    for found, stride in ((full, 16), (sliding, 3)):
        assert found["tokens"] == len(ids) - 1
        assert found["loss"] == pytest.approx(loss_by_definition(model, ids, stride), abs=1e-5)
    assert sliding["loss"] != pytest.approx(full["loss"], abs=1e-4)


def test_all_of_several_texts_are_evaluated(workplace: Path, run: Call) -> None:
    for name in "ab":
        Path(f"{name}.txt").write_text(CORPUS * 10 + name * 200, encoding="utf-8")
    run("train --config tiny.yaml 'data.path=[a.txt, b.txt]'")
    rows = map(json.loads, Path("runs/tiny/metrics.jsonl").read_text().splitlines())
    found = run("evaluate --checkpoint runs/tiny/last --device cpu").json
    assert found["loss"] == pytest.approx(
        [row["val/loss"] for row in rows if "val/loss" in row][-1], abs=1e-6
    )
    assert found["tokens"] == 2 * (len(CORPUS) * 10 + 200 - int(0.9 * (len(CORPUS) * 10 + 200))) - 1


def test_text_file_is_scored_character_by_character(here: Path, tmp_path: Path, run: Call) -> None:
    (tmp_path / "text.txt").write_text("The keeper sleeps till seven.", encoding="utf-8")
    result = run(f"evaluate --text-file {tmp_path}/text.txt --per-char --protocol sliding").json
    per_char = result["per_char"]
    assert "".join(char for char, _ in per_char) == "he keeper sleeps till seven."
    assert math.fsum(logprob for _, logprob in per_char) == pytest.approx(result["logprob"])
    assert result["bits_per_char"] == pytest.approx(-result["logprob"] / math.log(2) / 28)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))


def test_corpus_of_a_checkpoint_is_neither_read_nor_written(
    workplace: Path, trained: Path, refuse: Refuse
) -> None:
    before = sorted(workplace.rglob("*"))
    error = refuse(f"evaluate --checkpoint {trained}/runs/tiny")
    assert "the tokens that" in error
    assert "prepare-data --config" in error
    assert before == sorted(workplace.rglob("*"))


@pytest.mark.parametrize("read", [None, 102])
def test_bits_per_character_count_the_characters_that_were_read(
    workplace: Path, run: Call, read: int | None
) -> None:
    """The validation split begins with CORPUS and ends with characters of three bytes."""
    text = CORPUS * 10 + "€" * 50
    (workplace / "corpus.txt").write_text(text, encoding="utf-8")
    run(f"train --config tiny.yaml data.tokenizer=byte train.eval_max_tokens={read or 'null'}")
    rows = [
        json.loads(line)
        for line in (workplace / "runs/tiny/metrics.jsonl").read_text().splitlines()
    ]
    logged = next(row for row in reversed(rows) if "val/loss" in row)
    val = text.encode()[int(0.9 * len(text.encode())) :]
    some = val if read is None else val[: read + 1]
    per_char = len(some) / len(some.decode(errors="ignore"))
    assert logged["val/bits_per_char"] == pytest.approx(logged["val/loss"] / math.log(2) * per_char)
    result = run("evaluate --checkpoint runs/tiny/last").json
    assert result["bits_per_char"] == pytest.approx(
        result["loss"] / math.log(2) * len(val) / len(val.decode())
    )


@pytest.mark.parametrize(("fraction", "tokens"), [(0.07, 385), (0.002, 10), (0.00005, 0)])
def test_test_split_is_evaluated_where_there_is_one(
    fraction: float, tokens: int, workplace: Path, run: Call, refuse: Refuse
) -> None:
    run(
        f"train --config tiny.yaml data.test_fraction={fraction} train.max_steps=1 "
        "train.sample_tokens=0"
    )
    model, tokenizer = gpt.load("runs/tiny", "cpu")
    ids = torch.from_numpy(tokenizer.encode(Path("corpus.txt").read_text(encoding="utf-8")))
    for protocol, stride in PROTOCOLS.items():
        options = f"--checkpoint runs/tiny --device cpu --split test --protocol {protocol}"
        evaluate = f"evaluate {options}"
        if tokens == 0:
            assert "the test split has 0 tokens, too few to predict one;" in refuse(evaluate)
            continue
        found = run(evaluate).json
        assert found["tokens"] == tokens
        end_of_text = ids[-tokens - 1 :]
        expected = loss_by_definition(model, end_of_text, stride)
        assert found["loss"] == pytest.approx(expected, abs=1e-5)


def test_prepare_data_encodes_once_and_says_what_there_is(
    workplace: Path, run: Call, refuse: Refuse
) -> None:
    first = run("prepare_data --config tiny.yaml")
    assert "uint8 on disk" in first.out
    assert "encoded" in first.err
    assert "encoded" not in run("prepare_data --config tiny.yaml").err
    (workplace / "corpus.txt").write_text("a")
    error = refuse("prepare_data --config tiny.yaml data.tokenizer=bpe")
    assert "error: the train split has 0 tokens, fewer than block_size + 1" in error
