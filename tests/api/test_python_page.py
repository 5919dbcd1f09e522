"""Every code block of docs/python.md runs, in order, with tiny recipes in place of those that train for minutes."""

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import gpt
from tiny import CORPUS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
MODEL = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16}
SECTIONS: dict[str, dict[str, Any]] = {
    "run": {"device": "cpu", "dtype": "float32", "compile": False},
    "model": MODEL,
    "optim": {"warmup_steps": 2},
    "train": {"batch_size": 4, "max_steps": 10, "eval_interval": 10, "sample_tokens": 10},
}


def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "shakespeare.yaml").write_text("\n".join(f"{name}: {keys}" for name, keys in SECTIONS.items()))
    monkeypatch.setattr("gpt.config.sources.RECIPES", recipes)
    monkeypatch.setattr("gpt.data.own_text.recipe_for", lambda *amounts: SECTIONS)
    (tmp_path / "my.txt").write_text("Once upon a time. " + CORPUS * 12, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    trackers = {name: MagicMock() for name in ("wandb", "mlflow")}
    for name, tracker in trackers.items():
        monkeypatch.setitem(sys.modules, name, tracker)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert (tmp_path / "loss.png").is_file()
    assert [row["step"] for row in gpt.Run("runs/watched").metrics if "mine/rate" in row] == [10]
    trackers["wandb"].log.assert_called()
    assert [call.kwargs["step"] for call in trackers["mlflow"].log_metric.call_args_list] == [10]
    assert gpt.Run("runs/tuned").config.model.n_embd == 64
    assert "wte.embedding B T C (1, 3, 64)" in capsys.readouterr().out
