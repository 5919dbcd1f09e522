"""Read the files of a corpus as one text, in pieces or in blocks, and build its tokenizer."""

import codecs
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gpt.config import DataConfig
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    code_points,
    convert_newlines,
)
from gpt.data.words import learn_words
from gpt.system.errors import DataError
from gpt.system.files import open_file

SEPARATOR = "\n\n"
"""Text between files: an empty line."""
PIECE = 1 << 20
"""Number of bytes that are read at a time."""
BLOCK = 1 << 20
"""Number of characters that are encoded at a time.

Blocks are counted over all files, so that the ids are a function of the text, however it is divided
into files and pieces.
"""
MAX_CHARACTERS = 2_000_000_000
"""Length of the longest corpus that is read."""
MAX_BYTES_LEARNED_WHOLE = 64 << 20
"""Bytes on disk up to which byte pairs are learned from all of a corpus."""
SAMPLED_BYTES = 16 << 20
"""Bytes on disk from which byte pairs of a larger corpus are learned; more would take minutes."""
SAMPLE_CHARACTERS = 1 << 14
"""Characters of the sample that the library gets at a time: it needs 200 bytes for each of them."""


class CorpusText:
    """The text of some files, with `SEPARATOR` between them.

    Every method that reads raises DataError if a file cannot be read or is not UTF-8, or if the
    files have more than `MAX_CHARACTERS` in total.

    Attributes:
        marks: control characters that mark the items of the text; running text has none.
        name: name of the corpus in messages.
        size: number of bytes on disk.
        held_out: the texts of `val` and `test` where they have files of their own, by split. The
            methods of this class do not read them, and so they add nothing to the vocabulary.
    """

    def __init__(
        self, files: Sequence[Path], held_out: "Mapping[str, CorpusText] | None" = None
    ) -> None:
        self.files = files
        self.marks: tuple[str, ...] = ()
        self.held_out = {} if held_out is None else held_out
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        self.name = f"{files[0]}{more}"
        self.size = sum(file.stat().st_size for file in files)

    def pieces(self, advance: Callable[[int], object] = lambda count: None) -> Iterator[str]:
        """Yield the text in pieces of any length.

        Args:
            advance: is called with the number of bytes on disk that were read since the last call.
        """
        separator = ""
        length = 0  # characters of all files so far
        for path in self.files:
            try:
                with open_file(path) as raw:
                    position = 0  # bytes of this file that `advance` was told of
                    for piece in _decoded(path, raw):
                        if not piece:
                            continue  # the decoder holds all of it back, or the file has ended
                        length += len(piece)
                        if length > MAX_CHARACTERS:
                            raise DataError(
                                f"{path}: the corpus has more than {MAX_CHARACTERS:,} characters"
                            )
                        # The separator comes before the first piece of a file, not after the last
                        # piece of the file before it, so that an empty file adds no separator.
                        yield separator + piece
                        separator = ""
                        advance(raw.tell() - position)
                        position = raw.tell()
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror or error}") from None
            # A separator follows only text: empty files at the beginning add none.
            separator = SEPARATOR if length > 0 else ""

    def blocks(self, advance: Callable[[int], object] = lambda count: None) -> Iterator[str]:
        """Yield the text in blocks of `BLOCK` characters; the last one may be shorter."""
        pending: list[str] = []  # pieces that were read and not yet yielded
        length = 0  # characters of the pending pieces
        for piece in self.pieces(advance):
            pending.append(piece)
            length += len(piece)
            # Pieces are joined only where they fill a block, since joining copies all of them.
            if length >= BLOCK:
                text = "".join(pending)
                end_of_blocks = length - length % BLOCK
                for begin in range(0, end_of_blocks, BLOCK):
                    yield text[begin : begin + BLOCK]
                pending = [text[end_of_blocks:]]
                length -= end_of_blocks
        if length > 0:
            yield "".join(pending)

    def characters(self) -> list[str]:
        """Return the distinct characters, sorted."""
        # An array of flags, one for each code point, is faster than a set of characters.
        seen = np.zeros(sys.maxunicode + 1, dtype=bool)
        for piece in self.pieces():
            seen[code_points(piece)] = True
        return [chr(code) for code in np.flatnonzero(seen)]

    def sample(self) -> Iterator[str]:
        """Yield the text from which byte pairs and words are learned.

        A small text is yielded as a whole. Of a larger one every n-th block is yielded, since
        learning from all of it would take minutes.
        """
        if self.size <= MAX_BYTES_LEARNED_WHOLE:
            yield from self.pieces()
            return
        block_step = math.ceil(self.size / SAMPLED_BYTES)
        for block in islice(self.blocks(), 0, None, block_step):
            for begin in range(0, len(block), SAMPLE_CHARACTERS):
                yield block[begin : begin + SAMPLE_CHARACTERS]


def build_tokenizer(corpus: CorpusText, config: DataConfig) -> Tokenizer:
    """Build the tokenizer that a configuration asks for; only bytes do not depend on the text."""
    if config.tokenizer == "byte":
        return ByteTokenizer()
    if config.tokenizer == "bpe":
        return learn_bpe(corpus.sample(), config.bpe_vocab_size)
    if config.tokenizer == "word":
        # The method is passed uncalled, since `learn_words` reads the text twice.
        return learn_words(corpus.sample, config.word_vocab_size, corpus.marks)
    chars = corpus.characters()
    # There is nothing to predict in a text of one character.
    if len(chars) < 2:
        raise DataError(
            f"{corpus.name} has {len(chars)} distinct characters; "
            "at least 2 are needed to learn from it"
        )
    return CharTokenizer(chars)


def extend_tokenizer(base: Tokenizer, corpus: CorpusText) -> Tokenizer:
    """Return `base`, with the characters of the corpus added that its vocabulary lacks."""
    if not isinstance(base, CharTokenizer):
        # Bytes and byte pairs encode any text, and unknown words are encoded as `<unk>`.
        return base
    missing = [char for char in corpus.characters() if char not in base.stoi]
    if not missing:
        return base
    return CharTokenizer([*base.itos, *missing])


def has_lone_returns(path: Path) -> bool:
    """Return whether a file has a CR that no LF follows."""
    pending = b""  # a CR at the end of a piece: the next piece may begin with its LF
    with open_file(path) as file:
        while data := file.read(PIECE):
            text = pending + data
            pending = b"\r" if text.endswith(b"\r") else b""
            # Every CR outside of a CR LF is a lone one, except a pending one: it is not known yet
            # what follows it.
            if text.count(b"\r") > text.count(b"\r\n") + len(pending):
                return True
    return pending != b""


def _decoded(path: Path, raw: BinaryIO) -> Iterator[str]:
    """Yield the text of a stream of UTF-8 in pieces, some of which may be empty.

    A byte order mark is left out, and line ends are converted as by `convert_newlines`.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    num_read = 0
    pending = ""  # one or two CR at the end of a piece: the next piece may begin with their LF
    while data := raw.read(PIECE):
        if b"\0" in data:
            raise DataError(
                f"{path} has NUL bytes: it is not UTF-8 text (UTF-16, or a binary file)"
            )
        text = pending + _decode(path, decoder, data, num_read)
        num_read += len(data)
        # Up to two CR are held back, since CR CR LF is one line end.
        complete = text.removesuffix("\r").removesuffix("\r")
        pending = text[len(complete) :]
        yield convert_newlines(complete)
    # The decoder holds back a character that is cut off at the end of a piece. Only this last call
    # raises an error if the file ends within a character.
    rest = _decode(path, decoder, b"", num_read, final=True)
    yield convert_newlines(pending + rest)


def _decode(
    path: Path,
    decoder: codecs.IncrementalDecoder,
    data: bytes,
    num_read: int,
    final: bool = False,
) -> str:
    """Decode a piece of a file; raise DataError with the position of a byte that is not UTF-8.

    Args:
        num_read: number of bytes of the file before the piece.
        final: whether the file ends with the piece.
    """
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        # `error.object` begins with the bytes that earlier pieces left undecoded.
        num_pending = len(error.object) - len(data)
        offset = num_read - num_pending + error.start
        raise DataError(
            f"{path} is not UTF-8: byte {offset:,} ({error.reason}); save it as UTF-8 text first"
        ) from None
