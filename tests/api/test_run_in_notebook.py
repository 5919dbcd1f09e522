"""How a run shows itself in a notebook."""

import shutil
from pathlib import Path

import gpt


def test_a_run_shows_its_losses(trained: Path) -> None:
    html = gpt.Run(trained / "runs" / "tiny")._repr_html_()
    assert "runs/tiny" in html
    assert html.count("<circle") == 3  # evaluated at steps 0, 3 and 6


def test_a_run_without_metrics_shows_its_name(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs" / "tiny", tmp_path / "bare", ignore=shutil.ignore_patterns("metrics.jsonl"))
    html = gpt.Run(tmp_path / "bare")._repr_html_()
    assert "bare" in html
    assert "<svg" not in html
