import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpt.cli import evaluate, train
from tiny import CORPUS


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def result_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert evaluate.main(list(options)) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_the_full_protocol_repeats_the_loss_of_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (trained / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = [row["val/loss"] for row in rows if "val/loss" in row][-1]
    result = result_of(capsys, "--checkpoint", "runs/tiny/last", "--device", "cpu")
    assert result["loss"] == pytest.approx(logged, abs=1e-6)  # float32 both, whatever else the CPU has


def test_the_protocols_see_the_tokens_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    full = result_of(capsys, "--protocol", "full")
    sliding = result_of(capsys, "--protocol", "sliding", "--stride", "3")
    random = result_of(capsys, "--protocol", "random", "--batches", "5", "--batch-size", "2")
    assert full["tokens"] == sliding["tokens"]
    assert random["tokens"] == 5 * 2 * 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--stride", "0"], "--stride is 0"),
        (["--protocol", "random", "--seed", "-1"], "--seed is -1"),
        (["--protocol", "random", "--seed", str(2**32)], "less than 2^32"),
        (["--protocol", "random", "--seed", "1" + "0" * 22], "--seed is 1" + "0" * 22),
        (["--stride", "3"], "--stride has no effect with --protocol full"),
        (["--protocol", "sliding", "--batches", "3"], "--batches has no effect"),
        (["--per-char"], "--per-char needs --text-file"),
        (["--protocol", "random", "--text-file", "corpus.txt"], "--protocol random samples a corpus"),
        (["--text-file", "gone.txt"], "cannot read gone.txt"),
        (["--text-file", "corpus.txt", "--split", "val"], "--split has no effect with --text-file"),
        (["--checkpoint", "runs"], "holds no checkpoint"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert evaluate.main(options) == 2
    assert words in capsys.readouterr().err


def test_a_text_file_is_scored_character_by_character(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("The keeper sleeps till seven.", encoding="utf-8")
    result = result_of(capsys, "--text-file", str(tmp_path / "text.txt"), "--per-char", "--protocol", "sliding")
    per_char = result["per_char"]
    assert "".join(char for char, _ in per_char) == "he keeper sleeps till seven."
    assert math.fsum(logprob for _, logprob in per_char) == pytest.approx(result["logprob"])
    assert result["bits_per_char"] == pytest.approx(-result["logprob"] / math.log(2) / 28)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))


def test_a_corpus_that_has_changed_is_told(workplace: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (workplace / "corpus.txt").open("a", encoding="utf-8") as file:
        file.write(CORPUS * 20)
    assert evaluate.main(["--checkpoint", str(trained / "runs/tiny")]) == 0
    assert "the corpus has changed since the run" in capsys.readouterr().err


@pytest.mark.parametrize("read", [None, 102])
def test_bits_per_character_count_the_characters_that_were_read(
    workplace: Path, capsys: pytest.CaptureFixture[str], read: int | None
) -> None:
    """The validation split begins with CORPUS and ends with characters of three bytes."""
    (workplace / "corpus.txt").write_text(CORPUS * 10 + "€" * 50, encoding="utf-8")
    options = [] if read is None else [f"train.eval_max_tokens={read}"]
    assert train.main(["--config", "tiny.yaml", "data.tokenizer=byte", *options]) == 0
    rows = [json.loads(line) for line in (workplace / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = next(row for row in reversed(rows) if "val/loss" in row)
    val = (CORPUS * 10 + "€" * 50).encode()[int(0.9 * len((CORPUS * 10).encode() + b"___" * 50)) :]
    whole = val.decode()
    some = whole if read is None else val[: read + 1].decode(errors="ignore")
    tokens = len(val) if read is None else read + 1
    assert logged["val/bits_per_char"] == pytest.approx(logged["val/loss"] / math.log(2) * tokens / len(some))
    result = result_of(capsys, "--checkpoint", "runs/tiny/last")
    assert result["bits_per_char"] == pytest.approx(result["loss"] / math.log(2) * len(val) / len(whole))


def test_a_test_split_is_evaluated_where_the_run_held_one_out(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = ("data.shard_tokens=1000", "data.workers=1", "data.test_fraction=0.07", "data.order=shuffled")
    assert train.main(["--config", "tiny.yaml", *shards]) == 0
    capsys.readouterr()
    losses = {}
    for split in ("val", "test"):
        assert evaluate.main(["--checkpoint", "runs/tiny", "--split", split]) == 0
        losses[split] = json.loads(capsys.readouterr().out.splitlines()[-1])["loss"]
    assert losses["val"] != losses["test"]


def test_a_test_split_that_there_is_not_is_told(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    assert evaluate.main(["--checkpoint", "runs/tiny", "--split", "test"]) == 2
    assert "has no test split; the run was made with data.test_fraction 0" in capsys.readouterr().err
