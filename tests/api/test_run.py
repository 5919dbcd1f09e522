import json
import shutil
from pathlib import Path

import pytest

import gpt
from gpt.cli import evaluate, sample


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> gpt.Run:
    monkeypatch.chdir(trained)
    return gpt.Run("runs/tiny", device="cpu")


def test_a_run_says_what_its_folder_holds(run: gpt.Run, trained: Path) -> None:
    lines = (trained / "runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert run.metrics == [json.loads(line) for line in lines]
    assert run.config.run.name == "tiny"
    assert not run.model.training
    assert run.tokenizer.decode(run.tokenizer.encode("Ada")) == "Ada"
    assert repr(run) == f"Run('runs/tiny', validation loss {run.metrics[-1]['val/loss']:.4f} at step 6)"


def test_a_sample_is_that_of_the_command(run: gpt.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--checkpoint", "runs/tiny", "--prompt", "Who", "--max-new-tokens", "9", "--seed", "3"]) == 0
    assert run.sample("Who", max_new_tokens=9, seed=3) + "\n" == capsys.readouterr().out
    with pytest.raises(gpt.GPTError, match="tmperature: unknown key; did you mean temperature"):
        run.sample(tmperature=1)


def test_an_evaluation_is_that_of_the_command(run: gpt.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--checkpoint", "runs/tiny", "--device", "cpu", "--split", "train"]) == 0
    assert run.evaluate("train") == json.loads(capsys.readouterr().out)
    with pytest.raises(gpt.GPTError, match="split is 'vall', expected one of train, val, test"):
        run.evaluate("vall")


def test_a_plot_shows_the_losses_that_there_are(run: gpt.Run, tmp_path: Path) -> None:
    figure = run.plot(tmp_path / "loss.svg")
    training, validation = figure.axes[0].lines
    assert training.get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert validation.get_ydata().tolist() == [row["val/loss"] for row in run.metrics if "val/loss" in row]
    assert (tmp_path / "loss.svg").is_file()
    for name, wanted in (("short", "train/loss"), ("empty", "nothing")):
        (tmp_path / name).mkdir()
        rows = [json.dumps(row) + "\n" for row in run.metrics if wanted in row]
        (tmp_path / name / "metrics.jsonl").write_text("".join(rows) + '{"step": 7, "cut', encoding="utf-8")
    assert len(gpt.plot(run, tmp_path / "short").axes[0].lines) == 3
    with pytest.raises(gpt.GPTError, match="empty has no losses yet"):
        gpt.plot(tmp_path / "empty")


def test_a_notebook_shows_its_losses_or_its_name(run: gpt.Run, tmp_path: Path) -> None:
    html = run._repr_html_()
    assert "runs/tiny" in html
    assert html.count("<circle") == 2  # evaluated at steps 3 and 6
    shutil.copytree("runs/tiny", tmp_path / "bare", ignore=shutil.ignore_patterns("metrics.jsonl"))
    html = gpt.Run(tmp_path / "bare")._repr_html_()
    assert "bare" in html
    assert "<svg" not in html


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for call, message in (
        (lambda: gpt.Run(tmp_path), r"is not a run folder: it has no config\.yaml"),
        (lambda: gpt.plot(), "at least one run"),
        (lambda: gpt.plot(tmp_path, x="time"), "x is 'time'"),
    ):
        with pytest.raises(gpt.GPTError, match=message):
            call()
