import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Call
from gpt.evaluation.online import OPTIMIZER, RATE
from tiny import CORPUS


def test_the_full_protocol_repeats_the_loss_of_training(here: Path, run: Call) -> None:
    rows = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = [row["val/loss"] for row in rows if "val/loss" in row][-1]
    result = run("evaluate --checkpoint runs/tiny/last --device cpu").json
    assert result["loss"] == pytest.approx(logged, abs=1e-6)  # float32 both, whatever else the CPU has


def test_the_protocols_see_the_tokens_they_say(here: Path, run: Call) -> None:
    full = run("evaluate --protocol full").json
    assert full["tokens"] == run("evaluate --protocol sliding --stride 3").json["tokens"]


def test_the_online_protocol_learns_what_it_has_scored_and_keeps_none_of_it(here: Path, run: Call) -> None:
    files = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    full, still = run("evaluate").json, run("evaluate --protocol online --rate 0").json
    assert still["loss"] == pytest.approx(full["loss"], abs=1e-6)
    online = run("evaluate --protocol online").json
    assert (online["protocol"], online["optimizer"], online["tokens"]) == ("online", OPTIMIZER, full["tokens"])
    assert (online["rate"], still["rate"]) == (RATE, 0)
    assert online["loss"] < full["loss"] - 0.05  # the corpus repeats itself
    assert files == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}


def test_a_text_file_is_learned_from_online(here: Path, run: Call) -> None:
    losses = [run(f"evaluate --text-file corpus.txt --protocol {name}").json["loss"] for name in ("full", "online")]
    assert losses[1] < losses[0] - 0.05


def test_a_text_file_is_scored_character_by_character(here: Path, tmp_path: Path, run: Call) -> None:
    (tmp_path / "text.txt").write_text("The keeper sleeps till seven.", encoding="utf-8")
    result = run(f"evaluate --text-file {tmp_path}/text.txt --per-char --protocol sliding").json
    per_char = result["per_char"]
    assert "".join(char for char, _ in per_char) == "he keeper sleeps till seven."
    assert math.fsum(logprob for _, logprob in per_char) == pytest.approx(result["logprob"])
    assert result["bits_per_char"] == pytest.approx(-result["logprob"] / math.log(2) / 28)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))


def test_a_corpus_that_a_checkpoint_names_is_neither_read_nor_written(
    workplace: Path, trained: Path, refuse: Callable[..., str]
) -> None:
    before = sorted(workplace.rglob("*"))
    error = refuse(f"evaluate --checkpoint {trained}/runs/tiny")
    assert "the tokens that" in error
    assert "prepare-data --config" in error
    assert before == sorted(workplace.rglob("*"))


@pytest.mark.parametrize("read", [None, 102])
def test_bits_per_character_count_the_characters_that_were_read(workplace: Path, run: Call, read: int | None) -> None:
    """The validation split begins with CORPUS and ends with characters of three bytes."""
    text = CORPUS * 10 + "€" * 50
    (workplace / "corpus.txt").write_text(text, encoding="utf-8")
    run(f"train --config tiny.yaml data.tokenizer=byte train.eval_max_tokens={read or 'null'}")
    rows = [json.loads(line) for line in (workplace / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = next(row for row in reversed(rows) if "val/loss" in row)
    val = text.encode()[int(0.9 * len(text.encode())) :]
    some = val if read is None else val[: read + 1]
    per_char = len(some) / len(some.decode(errors="ignore"))
    assert logged["val/bits_per_char"] == pytest.approx(logged["val/loss"] / math.log(2) * per_char)
    result = run("evaluate --checkpoint runs/tiny/last").json
    assert result["bits_per_char"] == pytest.approx(result["loss"] / math.log(2) * len(val) / len(val.decode()))


def test_a_test_split_is_evaluated_where_the_run_held_one_out(workplace: Path, run: Call) -> None:
    run("train --config tiny.yaml data.test_fraction=0.07 data.order=shuffled")
    losses = [run(f"evaluate --checkpoint runs/tiny --split {split}").json["loss"] for split in ("val", "test")]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(("fraction", "tokens"), [(0.00005, 0), (0.002, 11)])
def test_a_test_split_that_is_too_short_is_refused(
    fraction: float, tokens: int, workplace: Path, run: Call, refuse: Callable[..., str]
) -> None:
    run(f"train --config tiny.yaml data.test_fraction={fraction}")
    for protocol in ("full", "sliding"):
        evaluate = f"evaluate --checkpoint runs/tiny --split test --protocol {protocol}"
        if tokens:
            assert run(evaluate).json["tokens"] == tokens - 1
        else:
            assert "the test split has 0 tokens, too few to predict one;" in refuse(evaluate)
