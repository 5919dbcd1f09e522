"""Read one column of text from JSON lines or Parquet, a few rows at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpt.data.unpacking import require_package
from gpt.errors import DataError, first_line

LONGEST_LINE = 64 << 20
"""Bytes of a line of JSON; a longer one is refused, since it would have to be in memory."""
ROWS = 64
"""Rows of Parquet that are in memory at a time."""


def read_json_lines(stream: BinaryIO, path: Path, column: str) -> Iterator[str]:
    """Yield a value of each line; null is left out.

    Args:
        stream: the lines.
        path: names the file in messages.
        column: key of the value.

    Raises:
        DataError: a line is too long, not a JSON object in UTF-8, or has no text of that name.
    """
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(f"{path}:{number} is longer than {LONGEST_LINE:,} bytes; split it into several rows")
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number} is not a JSON object in UTF-8")
        if column not in row:
            raise DataError(f"{path}:{number} has {_listed(row)}, and data.column is {column!r}")
        if row[column] is not None:
            yield _text(row[column], path, number, column)


def read_parquet(raw: BinaryIO, path: Path, column: str) -> Iterator[str]:
    """Yield the values of a column; null is left out.

    Args:
        raw: the file.
        path: names the file in messages.
        column: name of a column of strings.

    Raises:
        DataError: the file is not Parquet or damaged, has no such column, or pyarrow is not installed.
    """
    require_package("pyarrow", path)
    from pyarrow import ArrowException, parquet

    number = 0
    try:
        file = parquet.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)
        if column not in file.schema_arrow.names:
            raise DataError(f"{path} has {_listed(file.schema_arrow.names)}, and data.column is {column!r}")
        for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
            for value in batch.column(0).to_pylist():
                number += 1
                if value is not None:
                    yield _text(value, path, number, column)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None


def _text(value: object, path: Path, row: int, column: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{path}: row {row} has a {type(value).__name__} in column {column!r}, expected text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{path}: row {row} has half of a surrogate pair in column {column!r}") from None
    return value


def _listed(names: object) -> str:
    columns = [str(name) for name in names]  # type: ignore[attr-defined]
    return f"the columns {', '.join(columns[:10])}" + (" ..." if len(columns) > 10 else "") if columns else "no columns"
