"""Read a corpus in pieces, so that it may be larger than memory, and refuse what is not text."""

import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.tokenizers import code_points, convert_newlines
from gpt.errors import DataError

PIECE = 1 << 20
"""Bytes read at a time."""

_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class NotTextError(DataError):
    """A file is not UTF-8."""


def decode_pieces(read: Callable[[int], bytes], path: Path, newlines: str) -> Iterator[str]:
    """Yield the text of a stream of UTF-8 in pieces of about a megabyte; a byte order mark is left out.

    `newlines` "lf" reads CRLF as LF, "keep" leaves it.

    Raises:
        NotTextError: the bytes are not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    done, held = 0, ""  # held: a CR at the end of a piece, whose LF may come with the next
    while data := read(PIECE):
        if done == 0:
            _refuse_wide(path, data)
        text = held + _decode(path, decoder, data, done)
        done += len(data)
        held = "\r" if text.endswith("\r") else ""
        yield convert_newlines(text.removesuffix("\r") if held else text, newlines)
    yield held + _decode(path, decoder, b"", done, final=True)


def _decode(path: Path, decoder: codecs.IncrementalDecoder, data: bytes, done: int, final: bool = False) -> str:
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        offset = done + len(data) - len(error.object) + error.start  # the object begins with pending bytes
        wrong = f"byte {offset:,} ({error.reason})"
        raise NotTextError(f"{path} is not UTF-8: {wrong}; save it as UTF-8 text first") from None


def _refuse_wide(path: Path, data: bytes) -> None:
    for mark, name in _WIDE_MARKS.items():
        if data.startswith(mark):
            raise NotTextError(f"{path} is {name}; save it as UTF-8 first, for example: iconv -f {name} -t UTF-8")
    if b"\0" in data[:4096]:
        raise NotTextError(f"{path} has NUL bytes: it is not UTF-8 text (UTF-16, or a binary file)")


def characters_in(pieces: Iterable[NDArray[np.integer[Any]]]) -> list[str]:
    """Return the characters whose code points are in any of several arrays, sorted."""
    seen = np.zeros(sys.maxunicode + 1, dtype=bool)
    for codes in pieces:
        seen[codes] = True
    return [chr(code) for code in np.flatnonzero(seen)]


def distinct_code_points(text: str) -> NDArray[np.intp]:
    seen = np.zeros(sys.maxunicode + 1, dtype=bool)
    seen[code_points(text)] = True
    return np.flatnonzero(seen)
