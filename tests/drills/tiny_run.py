"""A folder to work in, and a trained run to attack, in half a second."""

import contextlib
from pathlib import Path

from gpt.cli import sweep, train
from gpt.training.sweeps import sweep as sweeps
from tiny import CORPUS, TINY
from training.sweeps.in_process import train_here

GRID = "optim: {learning_rate: [1e-3, 1e-2]}\n"
SWEEP = Path("runs/tiny-grid")


def make_folder(folder: Path, recipe: str = TINY) -> Path:
    """Return a new folder with tiny.yaml, grid.yaml and corpus.txt."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(recipe, encoding="utf-8")
    (folder / "grid.yaml").write_text(GRID, encoding="utf-8")
    (folder / "corpus.txt").write_text(CORPUS * 30, encoding="utf-8")
    return folder


def train_tiny(folder: Path, *overrides: str) -> Path:
    """Train runs/tiny in such a folder, and return its path."""
    with contextlib.chdir(make_folder(folder)):
        assert train.main(["--config", "tiny.yaml", *overrides]) == 0
    return folder / "runs" / "tiny"


def sweep_once(*changes: str) -> int:
    """Run the sweep `SWEEP`, or continue it, in a child; one kill ends it and its trial."""
    sweeps.start_trial = train_here  # type: ignore[assignment]
    sweeps.POLL_SECONDS = 0
    usual = ["run.threads=1", "run.kernels=torch", "train.max_steps=4", "train.eval_interval=2"]
    return sweep.main(["--config", "tiny.yaml", "grid.yaml", *usual, "train.sample_tokens=0", *changes])
