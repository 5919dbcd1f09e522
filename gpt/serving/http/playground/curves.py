"""The curves of a run, from its metrics.jsonl: thinned to what a plot can show, and followed while the run trains."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpt.files import parse_json

MAX_POINTS = 1000
"""Points of a curve, about as many as a plot has pixels."""
TAIL_BYTES = 1 << 16
"""Bytes from the end of a file that are read first to find a step; doubled until it is found."""
TRAINING = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "tokens_per_second": "speed/tokens_per_second",
    "seconds": "speed/seconds",
}
VALIDATION = {"loss": "val/loss", "bits_per_char": "val/bits_per_char", "seconds": "speed/seconds"}
_STEP = re.compile(rb'\{"step": (\d{1,18}),')

Columns = dict[str, list[float | None]]


@dataclass(frozen=True)
class Curves:
    """What a run reported, oldest first.

    Attributes:
        training: columns `step`, `loss` (nats per token), `learning_rate`, `tokens_per_second` and `seconds` (of the
            whole run); a value that was not finite is None.
        validation: columns `step`, `loss` (nats per token), `bits_per_char` and `seconds`.
        every: n where the training curve has one of n points, and its last.
        last_step: last reported step; None if nothing was reported.
    """

    training: Columns
    validation: Columns
    every: int
    last_step: int | None


def read_curves(file: Path, after: int = -1, most: int = MAX_POINTS) -> Curves:
    """Read the points after the step `after` from a metrics.jsonl, at most so many; a missing file is empty."""
    if not file.is_file():
        return Curves(_columns([], TRAINING), _columns([], VALIDATION), 1, None)
    lines: dict[bool, list[bytes]] = {False: [], True: []}  # by whether they are of the validation
    last_step = None
    with file.open("rb") as opened:
        _seek(opened, after)
        for step, line in _lines(opened):
            last_step = step
            if step > after:
                lines[b'"val/loss"' in line].append(line)
    every = max(1, -(-len(lines[False]) // most))
    training, validation = _thinned(lines[False], most), _thinned(lines[True], most)
    return Curves(_columns(training, TRAINING), _columns(validation, VALIDATION), every, last_step)


def _thinned(lines: list[bytes], most: int) -> list[dict[str, Any]]:
    """Return the rows of at most so many lines and of the last one."""
    stride = max(1, -(-len(lines) // most))
    kept = lines[::stride]
    if (len(lines) - 1) % stride:
        kept.append(lines[-1])
    return [row for line in kept for row in _parse(line)]


def last_progress(file: Path) -> tuple[int, float] | None:
    """Return the last step of the training curve and the seconds of the run until then; None: there is none."""
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL_BYTES))
        rows = [row for _, line in _lines(opened) for row in _parse(line)]
    found = [row for row in rows if _is_number(row.get("speed/seconds"))]
    return (found[-1]["step"], float(found[-1]["speed/seconds"])) if found else None


def _seek(file: BinaryIO, after: int) -> None:
    """Go to a place in a file before all steps after `after`, and not far before them."""
    size, block = file.seek(0, os.SEEK_END), TAIL_BYTES
    while after >= 0 and block < size:
        begin = file.seek(size - block)
        first = next(iter(_lines(file)), None)
        if first is not None and first[0] <= after:
            file.seek(begin)
            return
        block *= 2
    file.seek(0)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines with their steps; a line that begins in the middle has none and is left out."""
    for line in file:
        match = _STEP.match(line)
        if match and line.endswith(b"\n"):
            yield int(match[1]), line


def _parse(line: bytes) -> list[dict[str, Any]]:
    """Return the row of a line; none for one that is damaged."""
    try:
        row = parse_json(line)
    except ValueError:
        return []
    return [row]


def _columns(rows: list[dict[str, Any]], names: dict[str, str]) -> Columns:
    columns: Columns = {"step": [row["step"] for row in rows]}
    for column, name in names.items():
        columns[column] = [value if _is_number(value := row.get(name)) else None for row in rows]
    return columns


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
