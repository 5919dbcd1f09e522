"""Read the metrics of a run."""

import math
from pathlib import Path
from typing import Any

from gpt.checkpoint import RunFolder
from gpt.system.errors import CheckpointError
from gpt.system.files import MAX_METRICS_BYTES, parse_json, read_file, text_for_path


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, in order.

    Each has a `step`, and numbers by name; a number that was infinite is None. A last line that
    training is still writing is left out.

    Raises:
        CheckpointError: the file is missing, or one of its lines is damaged.
    """
    text = text_for_path(run)
    if text is not None:
        raise CheckpointError(f"{text}; give a run folder")
    file = RunFolder(run).metrics
    try:
        lines = read_file(file, MAX_METRICS_BYTES).splitlines(keepends=True)
    except OSError as error:
        raise CheckpointError(f"cannot read the metrics of {run}: {error.strerror}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_parse_row(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            is_complete = line.endswith(b"\n")
            if is_complete:  # otherwise training is still writing it
                raise CheckpointError(f"{file}:{number} is not a line of metrics") from None
    return rows


def _parse_row(line: bytes) -> dict[str, Any]:
    """Return the content of a line; what is raised for a wrong one depends on what is wrong."""
    row: dict[str, Any] = parse_json(line)
    numbers = [value for value in row.values() if value is not None]
    if not isinstance(row["step"], int) or not all(map(math.isfinite, numbers)):
        raise ValueError
    return row
