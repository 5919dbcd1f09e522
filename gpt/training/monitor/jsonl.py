"""Every scalar as one JSON object a line, in metrics.jsonl."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from gpt.files import write_atomic
from gpt.training.monitor.base import Monitor


class MetricsFile(Monitor):
    """Appends to a file; a resumed run first removes what came after the step it resumes from.

    Args:
        path: the file; made if missing.
        resume_step: steps done so far; lines of later steps are dropped.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        if path.is_file():
            write_atomic(path, _up_to(path.read_bytes(), resume_step))
        self._file = path.open("a", encoding="utf-8")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **{name: _finite(value) for name, value in values.items()}}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _finite(value: float) -> float | None:
    """JSON has no word for infinity or NaN."""
    return value if math.isfinite(value) else None


def _up_to(content: bytes, step: int) -> bytes:
    """The whole lines of steps up to `step`; a line cut short by a crash is left out."""
    kept = []
    for line in content.splitlines(keepends=True):
        try:
            if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return b"".join(kept)
