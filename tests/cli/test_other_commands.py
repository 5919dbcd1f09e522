from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Call


def test_prepare_data_encodes_once_and_says_what_there_is(workplace: Path, run: Call) -> None:
    first = run("prepare_data --config tiny.yaml")
    assert "uint8 on disk" in first.out
    assert "encoded" in first.err
    assert "encoded" not in run("prepare_data --config tiny.yaml").err


def test_prepare_data_refuses_what_cannot_be_trained_on(workplace: Path, refuse: Callable[..., str]) -> None:
    (workplace / "corpus.txt").write_text("a")
    error = refuse("prepare_data --config tiny.yaml data.tokenizer=bpe")
    assert "error: the train split has 0 tokens, fewer than block_size + 1" in error


@pytest.mark.parametrize(
    "line", ["plot one --output a.png", "import_model --from hf --input a --output b", "make_config"]
)
def test_a_command_without_plugins_runs_none(line: str, workplace: Path, refuse: Callable[..., str]) -> None:
    (workplace / "mine.py").write_text("open('executed', 'w')")
    assert "--plugin" in refuse(f"{line} --plugin mine.py")
    assert not (workplace / "executed").exists()


@pytest.fixture
def metrics(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metrics of a run below the working directory, the name of whose folder is half a formula."""
    monkeypatch.chdir(tmp_path)
    Path("x$_{$").mkdir()
    Path("folder.png").mkdir()
    Path("x$_{$/metrics.jsonl").write_bytes((trained / "runs/tiny/metrics.jsonl").read_bytes())
    return Path("x$_{$/metrics.jsonl")


def test_plot_draws_a_picture_and_the_name_of_a_folder_is_no_formula(metrics: Path, run: Call) -> None:
    run("plot 'x$_{$' --output loss.png --x seconds")
    assert Path("loss.png").read_bytes().startswith(b"\x89PNG")
    run("plot 'x$_{$' --output loss.svg")
    assert "x$_{$: training" in Path("loss.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        *(b"null", b"39.5", b"{", b"\xff", b'{"train/loss": 3}'),
        *(b'{"step": 3, "train/loss": "x"}', b'{"step": null, "train/loss": 1}'),
    ],
)
def test_an_odd_line_of_metrics_is_named(line: bytes, metrics: Path, refuse: Callable[..., str]) -> None:
    count = len(metrics.read_bytes().splitlines())
    metrics.write_bytes(metrics.read_bytes() + line + b"\n")
    error = refuse("plot 'x$_{$' --output loss.png")
    assert error == f"error: {metrics}:{count + 1} is not a line of metrics"


@pytest.mark.parametrize("name", [".", "loss", "loss.tiff", "folder.png", "gone/loss.png"])
def test_a_picture_that_cannot_be_written_there_leaves_nothing(
    name: str, metrics: Path, refuse: Callable[..., str]
) -> None:
    assert name in refuse("plot 'x$_{$' --output", name)
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["folder.png", "x$_{$"]
