"""A folder to work in, and a trained run to attack, in half a second."""

import contextlib
from pathlib import Path

from gpt.cli import train
from tiny import CORPUS, TINY


def make_folder(folder: Path, recipe: str = TINY) -> Path:
    """Return a new folder with tiny.yaml and corpus.txt."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(recipe, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    return folder


def train_tiny(folder: Path, *overrides: str) -> Path:
    """Train runs/tiny in such a folder, and return its path."""
    with contextlib.chdir(make_folder(folder)):
        assert train.main(["--config", "tiny.yaml", *overrides]) == 0
    return folder / "runs" / "tiny"
