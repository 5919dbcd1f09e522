"""Read the metrics of a run."""

from pathlib import Path
from typing import Any

from gpt.checkpoint import RunFolder
from gpt.system.errors import CheckpointError
from gpt.system.files import parse_json

Curve = list[tuple[float, float]]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, in order: each has a `step` and some numbers by name.

    A last line that is being written is left out.

    Raises:
        CheckpointError: the file is missing, or one of its lines is damaged.
    """
    file, rows = RunFolder(run).metrics, []
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise CheckpointError(f"cannot read the metrics of {run}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
        except ValueError:
            if line.endswith(b"\n"):
                raise _damaged(file, number) from None
            continue
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise _damaged(file, number)
        rows.append(row)
    return rows


def read_curve(run: Path, name: str, x: str) -> Curve:
    """Return the points (step or seconds, value) of a metric of a run, of which there may be none yet.

    Raises:
        CheckpointError: see `read_metrics`.
    """
    key, points = "step" if x == "step" else "speed/seconds", []
    for number, row in enumerate(read_metrics(run), start=1):
        if row.get(name) is not None:  # null: it was not finite
            try:
                points.append((float(row[key]), float(row[name])))
            except (ValueError, KeyError, TypeError, OverflowError):
                raise _damaged(RunFolder(run).metrics, number) from None
    return points


def _damaged(file: Path, number: int) -> CheckpointError:
    return CheckpointError(f"{file}:{number} is not a line of metrics")
