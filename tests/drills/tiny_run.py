"""A trained run to attack, in half a second."""

import contextlib
from pathlib import Path

from gpt.cli import train
from tiny import CORPUS, TINY


def train_tiny(folder: Path, *overrides: str) -> Path:
    """Write tiny.yaml and corpus.txt into a folder, train runs/tiny there, and return its path."""
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    with contextlib.chdir(folder):
        assert train.main(["--config", "tiny.yaml", *overrides]) == 0
    return folder / "runs" / "tiny"


def hidden_files(folder: Path) -> list[str]:
    """Return the names that begin with a dot below a folder: what an interrupted write left there."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))
