"""Text samples as files, one per evaluation."""

from pathlib import Path

from gpt.training.monitor.base import Monitor


class SampleFiles(Monitor):
    """Writes `samples/step-000250.txt`; a disk that is full loses the sample, not the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, step: int, name: str, text: str) -> None:
        if name == "sample":
            (self._folder / f"step-{step:06d}.txt").write_text(text + "\n", encoding="utf-8")
