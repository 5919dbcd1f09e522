"""Read the column of text of a Parquet file, a few rows at a time."""

from collections.abc import Iterator
from importlib.util import find_spec
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from gpt.system.errors import DataError, first_line, quoted

MAX_ROW_BYTES = 64 << 20
"""Bytes of a row, which has to be in memory."""
MAX_GROUP_BYTES = 2_000_000_000
"""Bytes that a group of rows may say to have."""
MAX_FOOTER = 16 << 20
"""Bytes of the description of a file, which takes a hundred times as much when it is read."""
TEXTS = ("string", "large_string", "string_view", "null")
"""Types of columns that are read."""
ROWS = 64
"""Rows that are in memory at a time."""


def is_table(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def read_parquet(raw: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the rows of the column `text`, or else of the only one with text; null is left out.

    Raises DataError where the file is not Parquet or damaged, has no such column, or would fill the memory.
    """
    if find_spec("pyarrow") is None:
        raise DataError(f"{path} needs the pyarrow package: pip install 'glassgpt[corpora]'")
    from pyarrow import ArrowException

    try:
        file, column = _open(raw, path)
        for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
            for scalar in batch.column(0):
                value = getattr(scalar, "value", scalar)  # of a dictionary
                if value is not None and value.is_valid:
                    if value.as_buffer().size > MAX_ROW_BYTES:
                        raise DataError(f"{path}: a row is longer than {MAX_ROW_BYTES:,} bytes; split it")
                    yield value.as_py()
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None


def _open(raw: BinaryIO, path: Path) -> tuple[Any, str]:
    """Open a file and check, before anything of it is unpacked, what it says to have; return it, and its column.

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
    kinds = {each.name: each.type.value_type if is_dictionary(each.type) else each.type for each in file.schema_arrow}
    texts = [name for name, kind in kinds.items() if str(kind) in TEXTS]
    if "text" not in texts and len(texts) != 1:
        listed = ", ".join(quoted(f"{name} ({kind})", 40) for name, kind in list(kinds.items())[:10])
        raise DataError(f"{path} needs a column of text that is called text; its columns are {listed or 'none'}")
    column = "text" if "text" in texts else texts[0]
    number = [file.metadata.schema.column(each).path for each in range(file.metadata.num_columns)].index(column)
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).column(number).total_uncompressed_size
        if size > MAX_GROUP_BYTES:
            raise DataError(f"{path} says to have {size:,} bytes in a group of rows; write it with smaller ones")
    once = {"read_dictionary": [column], "metadata": file.metadata}  # a text of which there are many is there once
    return parquet.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False, **once), column
