"""Read the metrics of a run."""

import math
from pathlib import Path
from typing import Any

from gpt.checkpoint import RunFolder
from gpt.system.errors import CheckpointError
from gpt.system.files import MAX_METRICS_BYTES, parse_json, read_file, text_for_path


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, in order: each has a `step` and numbers by name, None where one was infinite.

    A last line that is being written is left out.

    Raises:
        CheckpointError: the file is missing, or one of its lines is damaged.
    """
    if text := text_for_path(run):
        raise CheckpointError(f"{text}; give a run folder")
    file, rows = RunFolder(run).metrics, []
    try:
        lines = read_file(file, MAX_METRICS_BYTES).splitlines(keepends=True)
    except OSError as error:
        raise CheckpointError(f"cannot read the metrics of {run}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
            numbers = [value for value in row.values() if value is not None]
            if not isinstance(row["step"], int) or not all(map(math.isfinite, numbers)):
                raise ValueError
            rows.append(row)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            if line.endswith(b"\n"):
                raise CheckpointError(f"{file}:{number} is not a line of metrics") from None
    return rows
