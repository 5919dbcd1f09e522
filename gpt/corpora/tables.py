"""Read one column of text from JSON lines or Parquet, a few rows at a time."""

import json
from collections.abc import Iterable, Iterator
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from gpt.corpora.unpacking import require_pyarrow
from gpt.errors import DataError, first_line, quoted

MAX_LINE_BYTES = 64 << 20
"""Bytes of a line of JSON; a longer one is refused, since it would have to be in memory."""
MAX_VALUES = 1 << 22
"""Values that a line may have, since each of `[[],[],...]` takes 20 times the memory of its two characters."""
MAX_FOOTER = 16 << 20
"""Bytes of the description of a Parquet file, which takes a hundred times as much when it is read."""
TEXTS = ("string", "large_string", "string_view", "null")
"""Types of columns that are read."""
ROWS = 64
"""Rows of Parquet that are in memory at a time."""


def read_json_lines(stream: BinaryIO, path: Path, column: str) -> Iterator[str]:
    """Yield the value of each line's key `column`; null is left out.

    Raises:
        DataError: a line is too long, not a JSON object in UTF-8, or has no text of that name.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{path}:{number} is longer than {MAX_LINE_BYTES:,} bytes; split it into several rows")
        if not line.strip():
            continue
        if sum(map(line.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise DataError(f"{path}:{number} has more than {MAX_VALUES:,} values; split it into several rows")
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


def read_parquet(raw: BinaryIO, path: Path, column: str, max_bytes: int) -> Iterator[str]:
    """Yield the values of a column of strings; null is left out.

    Raises:
        DataError: the file is not Parquet or damaged, has no such column or more than `max_bytes` of it in a group of
            rows, or pyarrow is not installed.
    """
    require_pyarrow(path)
    from pyarrow import ArrowException

    number = 0
    try:
        file = _open_parquet(raw, path, column, max_bytes)
        for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
            for scalar in batch.column(0):
                number += 1
                value = getattr(scalar, "value", scalar)  # of a dictionary
                if value is not None and value.is_valid:
                    if value.as_buffer().size > MAX_LINE_BYTES:
                        raise DataError(f"{path}: row {number} is longer than {MAX_LINE_BYTES:,} bytes; split it")
                    yield _text(value.as_py(), path, number, column)
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None


def _open_parquet(raw: BinaryIO, path: Path, column: str, max_bytes: int) -> Any:
    """Open a file and check, before anything of it is unpacked, what it says to have.

    It may lie: a page, which is unpacked at once, takes up to the 2 GiB that the format allows.
    """
    from pyarrow import parquet
    from pyarrow.types import is_dictionary

    size = raw.seek(0, SEEK_END)
    raw.seek(max(0, size - 8))
    footer = int.from_bytes(raw.read(4), "little")
    if MAX_FOOTER < footer < size:
        raise DataError(f"{path} describes itself in {footer:,} bytes; write it with larger row groups")
    file = parquet.ParquetFile(raw)
    names = file.schema_arrow.names
    if names.count(column) != 1:
        raise DataError(f"{path} has {_listed(names)}, and data.column is {column!r}")
    kind = file.schema_arrow.field(column).type
    if str(kind.value_type if is_dictionary(kind) else kind) not in TEXTS:
        raise DataError(f"{path} has {quoted(str(kind), 40)} in column {column!r}, expected text")
    number = [file.metadata.schema.column(each).path for each in range(file.metadata.num_columns)].index(column)
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).column(number).total_uncompressed_size
        if size > max_bytes:
            raise DataError(
                f"{path} says to have {size:,} bytes in a group of rows, more than data.max_bytes {max_bytes:,}; "
                "raise data.max_bytes to use it"
            )
    once = {"read_dictionary": [column], "metadata": file.metadata}  # a text of which there are many is there once
    return parquet.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False, **once)


def _text(value: object, path: Path, row: int, column: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{path}: row {row} has a {type(value).__name__} in column {column!r}, expected text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{path}: row {row} has half of a surrogate pair in column {column!r}") from None
    return value


def _listed(names: Iterable[object]) -> str:
    columns = [quoted(str(name), 40) for name in names]
    return f"the columns {', '.join(columns[:10])}" + (" ..." if len(columns) > 10 else "") if columns else "no columns"
