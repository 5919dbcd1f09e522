"""The sizes that the pages of a Parquet file claim, read before a library allocates what they say.

The limits of pyarrow are for the description of the file, and the sizes in that are claims too, which reading ignores:
a file of 13 KB whose description says 128 MiB can unpack to 400.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

HEADER = 1 << 16
"""Bytes that are read for the header of a page; a longer one is refused."""
DEEPEST = 16
"""Structures within each other in a header; the format has three."""
UNPACKED, PACKED = 2, 3
"""Fields of a header: the sizes of its page, which follows it (parquet.thrift, PageHeader)."""


def largest_page(raw: BinaryIO, metadata: Any, column: int) -> int:
    """Return the bytes of the largest page of a column, unpacked, as the pages say.

    Args:
        raw: the file.
        metadata: pyarrow's, of the file.
        column: number of the column.

    Raises:
        ValueError: a page has no header.
        OSError: the file cannot be read.
    """
    return max(
        (size for group in range(metadata.num_row_groups) for size in _sizes(raw, metadata, group, column)), default=0
    )


def _sizes(raw: BinaryIO, metadata: Any, group: int, column: int) -> Iterator[int]:
    chunk = metadata.row_group(group).column(column)
    offsets = [chunk.data_page_offset, *([chunk.dictionary_page_offset] if chunk.has_dictionary_page else [])]
    position = min(offset for offset in offsets if offset and offset > 0)
    end = position + chunk.total_compressed_size
    while position < end:
        raw.seek(position)
        header = _Compact(raw.read(HEADER))
        fields = header.struct()
        packed, unpacked = fields.get(PACKED, -1), fields.get(UNPACKED, -1)
        if min(packed, unpacked) < 0:
            raise ValueError("a page says no size")
        yield max(packed, unpacked)
        position += header.position + packed


class _Compact:
    """Reads the integers of a structure in Thrift's compact protocol (thrift-compact-protocol.md)."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0
        self._skips: dict[int, Callable[[int], object]] = {
            **dict.fromkeys((1, 2), lambda depth: None),  # a boolean is in its type
            **dict.fromkeys((4, 5, 6), lambda depth: self._varint()),
            3: lambda depth: self._bytes(1),
            7: lambda depth: self._bytes(8),
            8: lambda depth: self._bytes(self._varint()),
            **dict.fromkeys((9, 10), self._list),
            12: self.struct,
        }

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Read a structure; return its integers by the numbers of their fields.

        Raises:
            ValueError: it is none, or does not end.
        """
        found: dict[int, int] = {}
        field = 0
        while first := self._bytes(1)[0]:
            kind, delta = first & 15, first >> 4
            field = field + delta if delta else _signed(self._varint())
            if kind in (4, 5, 6):
                number = _signed(self._varint())
                found[field] = max(number, found.get(field, number))
            else:
                self._skip(kind, depth + 1)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        if kind not in self._skips or depth > DEEPEST:
            raise ValueError("a page has no header")
        self._skips[kind](depth)

    def _list(self, depth: int) -> None:
        first = self._bytes(1)[0]
        count = first >> 4 if first >> 4 < 15 else self._varint()
        for _ in range(count):
            self._bytes(1) if first & 15 in (1, 2) else self._skip(first & 15, depth + 1)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._bytes(1)[0]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def _bytes(self, count: int) -> bytes:
        data = self._data[self.position : self.position + count]
        if len(data) < count:
            raise ValueError("a page has no header")
        self.position += count
        return data


def _signed(number: int) -> int:
    """Return the number whose zigzag encoding is given."""
    return number >> 1 ^ -(number & 1)
