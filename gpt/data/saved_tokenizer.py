"""Read tokenizers that checkpoints and token files have saved."""

import reprlib
from typing import Any

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.system.errors import DataError


def tokenizer_from_dict(data: Any) -> Tokenizer:
    """Return the tokenizer whose `to_dict` returned `data`.

    Raises:
        DataError: `to_dict` of no tokenizer returns such a value.
    """
    match data:
        case {"type": "byte"}:
            return ByteTokenizer()
        case {"type": "char", "chars": [*chars]} if all(
            isinstance(char, str) and len(char) == 1 for char in chars
        ):
            return CharTokenizer(chars)
        case {"type": "bpe", "tokenizer": dict(content)}:
            # Imported here, since only byte pairs and words need the `tokenizers` library.
            from gpt.data.bpe import BPETokenizer

            return BPETokenizer(content)
        case {"type": "word", "tokenizer": dict(content), "unknown_length": float(length)}:
            from gpt.data.words import WordTokenizer

            return WordTokenizer(content, length)
    # `reprlib` shortens the value, which may have gigabytes.
    raise DataError(f"not a tokenizer: {reprlib.repr(data)[:60]}")
