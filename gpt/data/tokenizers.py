"""Convert text to token ids and back, with one id per character or one per byte."""

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt.system.errors import DataError, UnknownCharactersError

Ids = NDArray[np.integer[Any]]
"""Token ids, (N,)."""
_LINE_END = re.compile(r"\r{0,2}\n|\r")
"""A line end: LF, CRLF, CR, or the CR CR LF that Windows writes for a CRLF in text mode."""
NO_ID = -1
"""Stands for a code point without an id."""
MAX_LISTED = 10
"""Most unknown characters that an error lists; it only counts the others."""


class IncrementalDecoder:
    """Decodes token ids one at a time, and holds back the bytes of an incomplete character.

    Args:
        token_bytes: returns the bytes of an id.
        errors: how bytes that are not UTF-8 are decoded, as for `bytes.decode`; by default they
            become U+FFFD.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], errors: str = "replace") -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)

    def feed(self, index: int) -> str:
        """Return the text that this id completes: often one character, sometimes none."""
        return self._utf8.decode(self._token_bytes(index))

    def flush(self) -> str:
        """Return the text of the bytes that are held back after the last id."""
        return self._utf8.decode(b"", final=True)


class Tokenizer(Protocol):
    """Convert between text and token ids."""

    @property
    def vocab_size(self) -> int:
        """The number of ids V; every id is in [0, V)."""
        ...

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text, (T,); raise DataError for characters outside the vocabulary."""
        return self.encode_narrow(text).astype(np.int64)

    def encode_narrow(self, text: str) -> Ids:
        """Return the ids of a text, (T,), in the smallest unsigned type that holds all ids."""
        ...

    def decode(self, ids: Sequence[int] | Ids) -> str: ...

    def stream(self) -> IncrementalDecoder:
        """Return a decoder that takes the ids of a text one at a time."""
        return IncrementalDecoder(self.token_bytes)

    def token_bytes(self, index: int) -> bytes:
        """Return the UTF-8 bytes of one token, which may be only a part of a character."""
        ...

    def count_chars(self, ids: Ids) -> int:
        """Count the characters that begin in the ids."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold, from which `tokenizer_from_dict` builds it again."""
        ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size})"


class CharTokenizer(Tokenizer):
    """One id per character of a vocabulary, in sorted order.

    `itos[i]` is the character of id i, and `stoi` maps each character to its id.

    Args:
        unknown: what `encode` does with characters outside the vocabulary. "error" raises
            UnknownCharactersError, which lists them with their positions; "replace" writes
            `replacement` for each (a question mark, or else a space, or else the first character of
            the vocabulary); "drop" leaves them out.
    """

    def __init__(self, chars: Iterable[str], unknown: str = "error") -> None:
        self.itos = sorted(set(chars))
        if not self.itos:
            raise DataError(
                "a character vocabulary needs at least one character, and the text is empty"
            )
        self.stoi = {char: index for index, char in enumerate(self.itos)}
        if unknown not in ("error", "replace", "drop"):
            raise DataError(f"unknown characters: got {unknown!r}, expected error, replace or drop")
        self.unknown = unknown
        # The last of the three is always in the vocabulary.
        replacements = [char for char in ("?", " ", self.itos[0]) if char in self.stoi]
        self.replacement = replacements[0]
        codes = np.array([ord(char) for char in self.itos])
        # Encoding looks ids up in a table of all code points up to the largest one.
        self._ids = np.full(codes[-1] + 1, NO_ID, dtype=np.int32)
        self._ids[codes] = np.arange(len(codes))

    @property
    def vocab_size(self) -> int:
        return len(self.itos)

    def encode_narrow(self, text: str) -> Ids:
        ids = self._look_up(text)
        missing = ids == NO_ID
        if missing.any():
            if self.unknown == "error":
                raise UnknownCharactersError(self._unknown_message(text, np.flatnonzero(missing)))
            if self.unknown == "drop":
                ids = ids[~missing]
            else:  # replace
                ids = np.where(missing, self.stoi[self.replacement], ids)
        return ids.astype(smallest_dtype(self.vocab_size))

    def find_unknown(self, text: str) -> int | None:
        """Return the position of the first character outside the vocabulary, or None."""
        positions = np.flatnonzero(self._look_up(text) == NO_ID)
        return int(positions[0]) if len(positions) > 0 else None

    def _look_up(self, text: str) -> NDArray[np.int32]:
        """Return the id of each character, (N,), and `NO_ID` for those outside the vocabulary."""
        codes = code_points(text)  # (N,)
        in_table = codes < len(self._ids)
        # Code points beyond the table look up index 0 instead, which is replaced at the end.
        ids = self._ids[np.where(in_table, codes, 0)]
        return np.where(in_table, ids, NO_ID)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return "".join([self.itos[index] for index in ids])

    def stream(self) -> IncrementalDecoder:
        return IncrementalDecoder(self.token_bytes, "surrogatepass")

    def token_bytes(self, index: int) -> bytes:
        # An imported vocabulary may have half of a surrogate pair, which strict UTF-8 refuses.
        return self.itos[index].encode(errors="surrogatepass")

    def count_chars(self, ids: Ids) -> int:
        return len(ids)

    def to_dict(self) -> dict[str, Any]:
        return {"type": "char", "chars": self.itos}

    def _unknown_message(self, text: str, positions: NDArray[np.intp]) -> str:
        """Return an error message that lists each unknown character and its first position."""
        first_position: dict[str, int] = {}
        for position in positions:
            first_position.setdefault(text[position], int(position))
        found = [f"{char!r} at {position}" for char, position in first_position.items()]
        listed = ", ".join(found[:MAX_LISTED])
        if len(found) > MAX_LISTED:
            listed += f" and {len(found) - MAX_LISTED} more"
        return f"characters outside the vocabulary of {self.vocab_size}: {listed}; leave them out"


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8, so that 256 ids encode any text in any language."""

    vocab_size = 256

    def encode_narrow(self, text: str) -> Ids:
        return np.frombuffer(require_characters(text), dtype=np.uint8)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(int(index) for index in ids).decode("utf-8", errors="replace")

    def token_bytes(self, index: int) -> bytes:
        return bytes((index,))

    def count_chars(self, ids: Ids) -> int:
        """Count all bytes except those of the form 10xxxxxx, which continue a character.

        This is the encoding of UTF-8 (RFC 3629).
        """
        return int(np.count_nonzero((ids & 0xC0) != 0x80))

    def to_dict(self) -> dict[str, Any]:
        return {"type": "byte"}


def require_characters(text: str) -> bytes:
    """Return a text as UTF-8 bytes.

    Raises:
        DataError: the text has half of a surrogate pair, which is what Python makes of a byte that
            is not UTF-8, such as one in a command line.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{text[error.start]!r} at {error.start} is not a character; leave it out"
        ) from None


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id of a vocabulary."""
    return np.min_scalar_type(vocab_size - 1)


def convert_newlines(text: str) -> str:
    """Return a text with each CRLF, CR and CR CR LF replaced by LF, as a corpus is read."""
    if "\r" not in text:
        return text  # Most texts have no CR, and the regular expression is slow.
    return _LINE_END.sub("\n", text)


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code point of each character, (N,)."""
    # UTF-32 writes each code point as one integer of 32 bits.
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
