from pathlib import Path

import pytest

from gpt.cli import plot, prepare_data


def test_prepare_data_encodes_once_and_says_what_there_is(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare_data.main(["--config", "tiny.yaml"]) == 0
    first = capsys.readouterr()
    assert "uint8 on disk" in first.out
    assert "encoded" in first.err
    assert prepare_data.main(["--config", "tiny.yaml"]) == 0
    assert "encoded" not in capsys.readouterr().err
    assert prepare_data.main(["--config", "tiny.yaml", "--force"]) == 0
    assert "encoded" in capsys.readouterr().err


def test_prepare_data_refuses_what_cannot_be_trained_on(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "corpus.txt").write_text("a")
    assert prepare_data.main(["--config", "tiny.yaml", "data.tokenizer=bpe"]) == 2
    assert "error: the train split has 0 tokens, fewer than block_size + 1" in capsys.readouterr().err


def test_plot_draws_a_picture_of_a_run(trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    assert plot.main([str(trained / "runs/tiny"), "--output", str(picture), "--x", "seconds"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plot_of_what_is_no_run_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main([str(tmp_path), "--output", str(tmp_path / "x.png")]) == 2
    assert "cannot read the metrics" in capsys.readouterr().err


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A folder with the metrics of a run, whose name is half a formula."""
    folder = tmp_path / "x$_{$"
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes((trained / "runs/tiny/metrics.jsonl").read_bytes())
    return folder


def test_the_name_of_a_folder_is_no_formula(run: Path, tmp_path: Path) -> None:
    assert plot.main([str(run), "--output", str(tmp_path / "loss.svg")]) == 0
    assert "x$_{$: training" in (tmp_path / "loss.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"39.5",
        b"{",
        b"\xff",
        b'{"train/loss": 3}',
        b'{"step": 3, "train/loss": "x"}',
        b'{"step": null, "train/loss": 1}',
    ],
)
def test_an_odd_line_of_metrics_is_named(
    line: bytes, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = run / "metrics.jsonl"
    count = len(metrics.read_bytes().splitlines())
    metrics.write_bytes(metrics.read_bytes() + line + b"\n")
    assert plot.main([str(run), "--output", str(tmp_path / "loss.png")]) == 2
    assert capsys.readouterr().err == f"error: {metrics}:{count + 1} is not a line of metrics\n"


@pytest.mark.parametrize("name", [".", "loss", "loss.tiff", "folder.png", "gone/loss.png"])
def test_a_picture_that_cannot_be_written_there_leaves_nothing(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.iterdir())
    assert plot.main([str(run), "--output", name]) == 2
    assert name in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
