"""The text of the files of a corpus as one stream: in pieces as they are read, or in blocks of equal length."""

import glob
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gpt.config import DataConfig
from gpt.corpora.source_files import SourceFile
from gpt.corpora.tables import read_json_lines, read_parquet
from gpt.corpora.text import NotTextError, characters_in, decode_pieces, distinct_code_points
from gpt.corpora.unpacking import open_unpacked
from gpt.corpora.workers import map_texts
from gpt.data.tokenizers import convert_newlines
from gpt.errors import DataError

Advance = Callable[[int], object]
"""Receives how many more bytes of the files, as they are on disk, were read."""
BLOCK = 1 << 20
"""Characters that are encoded at a time, wherever the text comes from: the ids are a function of the text alone."""
IN_ONE_FILE = 64 << 20
"""Bytes up to which a text file is encoded in one process."""
SAMPLE = 16 << 20
"""Bytes, as they are on disk, that byte pairs of a larger corpus are learned from; more would take minutes."""
MAX_SAMPLED = 64
"""Blocks of it, whatever the files unpack to."""
SAMPLED = 1 << 14
"""Characters of it that are handed on at a time: the library takes 200 bytes for each while it splits them."""


class CorpusText:
    """The text of some files, with `data.separator` between documents: files of text, or rows of tables.

    Every method that reads raises DataError: a file cannot be read or unpacked, is not UTF-8 or not what its suffix
    says, or has no such column; or all unpack to more than `data.max_bytes`.
    """

    def __init__(self, files: Sequence[SourceFile], config: DataConfig) -> None:
        self.files, self._config = files, config
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        self.name = f"{files[0].path}{more}"
        """What messages call it."""
        self.size = sum(file.path.stat().st_size for file in files)
        """Bytes on disk."""
        self.has_crlf = False
        """Whether CRLF was found in what has been read."""

    @property
    def fits_one_file(self) -> bool:
        """Return whether it is one text file of a size that needs no shards."""
        return len(self.files) == 1 and self.files[0].is_plain and self.size <= IN_ONE_FILE

    def pieces(self, advance: Advance = lambda count: None) -> Iterator[str]:
        """Yield the text in pieces of any length."""
        meter = _Meter(self._config.max_bytes, advance)
        begun = False
        for file in self.files:
            for piece, begins_document in self._marked_pieces(file, meter):
                if begun and begins_document:
                    yield self._config.separator
                begun = True
                self.has_crlf |= meter.has_crlf
                yield piece

    def blocks(self, advance: Advance = lambda count: None) -> Iterator[str]:
        """Yield the text in blocks of `BLOCK` characters; the last one may be shorter."""
        held: list[str] = []
        length = 0
        for piece in self.pieces(advance):
            held.append(piece)
            length += len(piece)
            if length >= BLOCK:
                text = "".join(held)
                whole = length - length % BLOCK
                yield from (text[begin : begin + BLOCK] for begin in range(0, whole, BLOCK))
                held, length = [text[whole:]], length - whole
        if length:
            yield "".join(held)

    def characters(self) -> list[str]:
        if self.fits_one_file:
            return characters_in(map(distinct_code_points, self.pieces()))
        found = map_texts(None, self.blocks(), self._config.processes)
        return characters_in(np.frombuffer(codes, "<u4") for codes in found)

    def sample(self) -> Iterator[str]:
        """Yield what byte pairs are learned from: all of a small text, blocks at equal distances of a larger one."""
        if self.fits_one_file:
            yield from self.pieces()
            return
        for block in islice(islice(self.blocks(), 0, None, max(1, -(-self.size // SAMPLE))), MAX_SAMPLED):
            yield from (block[begin : begin + SAMPLED] for begin in range(0, len(block), SAMPLED))

    def _marked_pieces(self, file: SourceFile, meter: "_Meter") -> Iterator[tuple[str, bool]]:
        """Yield pieces of a file's text that are not empty, and whether a document begins with each."""
        newlines, column = self._config.newlines, self._config.column
        try:
            with file.path.open("rb") as raw:
                meter.begin(file.path, raw)
                if file.kind == "parquet":
                    yield from self._rows(read_parquet(raw, file.path, column, self._config.max_bytes), meter)
                    return
                with open_unpacked(file, raw) as stream:
                    if file.kind == "jsonl":
                        yield from self._rows(read_json_lines(stream, file.path, column), meter)
                        return
                    begins = True
                    for piece in decode_pieces(lambda count: meter.spent(stream.read(count)), file.path, newlines):
                        if piece:
                            yield piece, begins
                            begins = False
        except OSError as error:
            raise DataError(f"cannot read {file.path}: {error.strerror or error}") from None
        except NotTextError as error:
            raise NotTextError(f"{error}{self._pattern_without(file.path)}") from None

    def _pattern_without(self, unreadable: Path) -> str:
        """Return advice to leave a file of a folder out: a pattern for the ending that most of the others have."""
        folder, endings = Path(self._config.path or ""), Counter(file.path.suffix for file in self.files)
        del endings[""], endings[unreadable.suffix]
        if not endings or not folder.is_dir():
            return ""
        pattern = Path(glob.escape(str(folder))) / "**" / f"*{endings.most_common(1)[0][0]}"
        return f"; or leave it out with a glob pattern, for example {shlex.quote(str(pattern))}"

    def _rows(self, rows: Iterator[str], meter: "_Meter") -> Iterator[tuple[str, bool]]:
        for row in rows:
            meter.spent(row.encode())
            if row:
                yield convert_newlines(row, self._config.newlines), True


class _Meter:
    """Counts the bytes of text against `data.max_bytes`, and those of the files for a progress bar."""

    def __init__(self, max_bytes: int, advance: Advance) -> None:
        self._max_bytes, self._left, self._advance = max_bytes, max_bytes, advance
        self.path, self._position = Path(), 0
        self._raw: BinaryIO | None = None
        self.has_crlf = False

    def begin(self, path: Path, raw: BinaryIO) -> None:
        self.path, self._raw, self._position = path, raw, 0

    def spent(self, data: bytes) -> bytes:
        """Count bytes of text, and return them."""
        self.has_crlf |= b"\r\n" in data
        self._left -= len(data)
        if self._left < 0:
            raise DataError(
                f"{self.path}: the corpus has more than data.max_bytes {self._max_bytes:,} bytes of text; "
                "raise data.max_bytes to use it"
            )
        assert self._raw is not None
        position = max(self._position, self._raw.tell())
        self._advance(position - self._position)
        self._position = position
        return data
