"""Every scalar as one JSON object a line, in metrics.jsonl, and every sample as a text file."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from gpt.files import write_atomic
from gpt.training.monitor.base import Monitor


class MetricsFile(Monitor):
    """Appends to a file; a resumed run first removes what came after the step it resumes from.

    The file is opened for every line, so that a run folder that was deleted meanwhile is noticed.

    Args:
        path: the file; made if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, step: int) -> None:
        if self._path.is_file():
            write_atomic(self._path, _up_to(self._path.read_bytes(), step))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        line = json.dumps({"step": step, **{name: _finite(value) for name, value in values.items()}}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)


class SampleFiles(Monitor):
    """Writes `samples/step-000250.txt`; a full disk loses the sample, not the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, step: int, name: str, text: str) -> None:
        if name == "sample":
            (self._folder / f"step-{step:06d}.txt").write_text(text + "\n", encoding="utf-8")


def _finite(value: float) -> float | None:
    """Return None for infinity and NaN, for which JSON has no word."""
    return value if math.isfinite(value) else None


def _up_to(content: bytes, step: int) -> bytes:
    """Return the whole lines of steps up to `step`; a line cut short by a crash is left out."""
    kept = []
    for line in content.splitlines(keepends=True):
        try:
            if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return b"".join(kept)
