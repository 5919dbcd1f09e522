"""Every block of Python in docs/python.md and the README runs, in order, on any text, with tiny
recipes.
"""

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import gpt
from tiny import CORPUS

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32}
SECTIONS: dict[str, dict[str, Any]] = {
    "run": {"device": "cpu", "dtype": "float32", "compile": False},
    "model": MODEL,
    "optim": {"warmup_steps": 2},
    "train": {"batch_size": 4, "max_steps": 10, "eval_interval": 10, "sample_tokens": 10},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with my.txt, where recipes are tiny instead of such that train for minutes."""
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "shakespeare.yaml").write_text(
        "\n".join(f"{name}: {keys}" for name, keys in SECTIONS.items())
    )
    monkeypatch.setattr("gpt.config.sources.RECIPES", recipes)
    monkeypatch.setattr("gpt.data.own_text.recipe_for", lambda *amounts: SECTIONS)
    (tmp_path / "my.txt").write_text(CORPUS * 12, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_blocks(page: Path) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


def test_every_block_of_the_page_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackers = {name: MagicMock() for name in ("wandb", "mlflow")}
    for name, tracker in trackers.items():
        monkeypatch.setitem(sys.modules, name, tracker)
    run_blocks(ROOT / "docs" / "python.md")
    assert (place / "loss.png").is_file()
    assert [row["step"] for row in gpt.Run("runs/watched").metrics if "mine/rate" in row] == [10]
    trackers["wandb"].log.assert_called()
    assert [call.kwargs["step"] for call in trackers["mlflow"].log_metric.call_args_list] == [10]
    assert gpt.Run("runs/tuned").config.model.n_embd == 64
    assert "wte.embedding B T C (1, 3, 64)" in capsys.readouterr().out


def test_block_of_the_readme_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(ROOT / "README.md")
    assert len(capsys.readouterr().out) > 200
    assert (place / "runs/my/best.json").is_file()
