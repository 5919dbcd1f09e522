import json
from pathlib import Path

import pytest

from gpt.cli import evaluate


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def result_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, float]:
    assert evaluate.main(list(options)) == 0
    result: dict[str, float] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_the_full_protocol_repeats_the_loss_of_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (trained / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    logged = [row["val/loss"] for row in rows if "val/loss" in row][-1]
    result = result_of(capsys, "--checkpoint", "runs/tiny/last", "--device", "cpu")
    assert result["loss"] == pytest.approx(logged, abs=1e-2)  # bfloat16 where the CPU has it


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
        (["--checkpoint", "runs"], "holds no checkpoint"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert evaluate.main(options) == 2
    assert words in capsys.readouterr().err
