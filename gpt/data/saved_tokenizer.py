"""Tokenizers as checkpoints and token files keep them."""

import reprlib
from typing import Any

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.system.errors import DataError


def tokenizer_from_dict(data: Any) -> Tokenizer:
    """Return the tokenizer whose `to_dict` gave the value.

    Raises:
        DataError: the value is that of no tokenizer.
    """
    match data:
        case {"type": "byte"}:
            return ByteTokenizer()
        case {"type": "char", "chars": [*chars]} if all(
            isinstance(char, str) and len(char) == 1 for char in chars
        ):
            return CharTokenizer(chars)
        case {"type": "bpe", "tokenizer": dict(content)}:
            # Imported here, since only these tokenizers need the library of byte pairs.
            from gpt.data.bpe import BPETokenizer

            return BPETokenizer(content)
        case {"type": "word", "tokenizer": dict(content), "unknown_length": float(length)}:
            from gpt.data.words import WordTokenizer

            return WordTokenizer(content, length)
    raise DataError(f"not a tokenizer: {reprlib.repr(data)[:60]}")  # of what may have gigabytes
