"""Read the column of text of a Parquet file, a few rows at a time."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from gpt.system.errors import DataError, first_line, quoted

TEXTS = ("string", "large_string", "string_view", "null")
"""Types of columns that are read."""
ROWS = 64
"""Rows that are in memory at a time."""


def is_table(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def read_parquet(raw: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the rows of the column `text`, or else of the only one with text; null is left out.

    Raises DataError where the file is not Parquet or damaged, or has no such column.
    """
    if find_spec("pyarrow") is None:
        raise DataError(f"{path} needs the pyarrow package: pip install 'glassgpt[corpora]'")
    from pyarrow import ArrowException, parquet
    from pyarrow.types import is_dictionary

    try:
        file = parquet.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)
        columns = {each.name: each.type for each in file.schema_arrow}
        kinds = {name: kind.value_type if is_dictionary(kind) else kind for name, kind in columns.items()}
        texts = [name for name, kind in kinds.items() if str(kind) in TEXTS]
        if "text" not in texts and len(texts) != 1:
            listed = ", ".join(quoted(f"{name} ({kind})", 40) for name, kind in list(kinds.items())[:10])
            raise DataError(f"{path} needs a column of text that is called text; its columns are {listed or 'none'}")
        column = "text" if "text" in texts else texts[0]
        for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
            yield from (row for row in batch.column(0).to_pylist() if row is not None)
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
