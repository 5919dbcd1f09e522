"""Byte pair encoding with the `tokenizers` library (Sennrich et al. 2015, arXiv 1508.07909)."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt.data.bpe_parts import SPACE, require_known_parts
from gpt.data.tokenizers import Ids, Tokenizer, require_characters, smallest_dtype
from gpt.data.tokenizers_library import library_errors, require_library
from gpt.system.errors import DataError, first_line

MAX_TOKENS = 10_000_000
"""Largest number of ids: a vocabulary that somebody else wrote must not take gigabytes."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A token of sentencepiece for one byte."""


class BPETokenizer(Tokenizer):
    """Tokens of one or more bytes of UTF-8, which encode any text without unknown characters.

    Args:
        content: a tokenizer.json, either with byte-level tokens, as of GPT-2, Llama 3 and Qwen, or
            of sentencepiece with byte fallback, as of Llama 2.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        require_library("byte pair encoding")
        # Imported here, since the library is optional: characters and bytes do not need it.
        from tokenizers import Tokenizer as Library

        # Truncation and padding would change the ids of a text.
        content = content | {"truncation": None, "padding": None}
        try:
            if content["model"]["type"] != "BPE":
                raise DataError(
                    "only byte pair encoding is supported, and the model is "
                    f"{content['model']['type']}"
                )
            require_known_parts(content)
            spelling = spelling_of(content["decoder"])  # how the vocabulary writes bytes
            with library_errors("not a tokenizer"):
                # A post-processor would add special tokens around each text. Only the saved content
                # keeps it.
                self._tokenizer = Library.from_str(json.dumps(content | {"post_processor": None}))
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
            added = {token["content"] for token in content.get("added_tokens") or []}
            largest_id = max(vocabulary.values())
        except DataError:
            raise  # the message already says what is wrong
        except Exception as error:
            # Somebody else may have written the content: keys can be missing, and values can have
            # any type.
            raise DataError(f"not a tokenizer: {first_line(error)}") from None
        if largest_id >= MAX_TOKENS:
            raise DataError(f"a token has the id {largest_id}; {MAX_TOKENS:,} ids are supported")
        # With a token for every byte, every text can be encoded.
        missing = set(spelling.byte_names) - vocabulary.keys()
        if missing:
            raise DataError(
                f"{len(missing)} of the 256 bytes have no token, "
                "so that texts would lose characters"
            )
        self._content = content
        self._bytes = [b""] * (largest_id + 1)  # ids without a token stay empty
        for token, index in vocabulary.items():
            # Added tokens are written as they are, the others in the spelling of the vocabulary.
            self._bytes[index] = token.encode() if token in added else spelling.to_bytes(token)
        self._leading_space = spelling.leading_space
        self._chars = np.array([count_beginning_chars(token) for token in self._bytes])

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode_narrow(self, text: str) -> Ids:
        require_characters(text)
        with library_errors("the tokenizer fails"):
            # Unlike `encode`, this method does not compute where each token lies in the text, which
            # would double the time.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=smallest_dtype(self.vocab_size))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text; bytes that are not UTF-8 become U+FFFD."""
        encoded = b"".join([self._bytes[int(index)] for index in ids])
        text = encoded.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._leading_space else text

    def token_bytes(self, index: int) -> bytes:
        return self._bytes[index]

    def count_chars(self, ids: Ids) -> int:
        return int(self._chars[ids].sum())

    def to_dict(self) -> dict[str, Any]:
        return {"type": "bpe", "tokenizer": self._content}


def learn_bpe(pieces: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Learn the most frequent merges of a text, within words as GPT-2 splits them.

    The first 256 of the `vocab_size` ids are single bytes, so that any text can be encoded. A short
    text may give fewer ids.
    """
    require_library("byte pair encoding")
    # Imported here, since the library is optional: characters and bytes do not need it.
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=byte_symbols(), show_progress=False
    )
    library.train_from_iterator(pieces, trainer)
    return BPETokenizer(json.loads(library.to_str()))


class Spelling(NamedTuple):
    """How a vocabulary writes its tokens.

    Attributes:
        byte_names: the tokens of the 256 single bytes.
        to_bytes: maps a token to its bytes.
        leading_space: whether encoding adds a space before a text, which decoding removes.
    """

    byte_names: list[str]
    to_bytes: Callable[[str], bytes]
    leading_space: bool


def spelling_of(decoder: Any) -> Spelling:
    """Return how a vocabulary writes its tokens, given the decoder of its tokenizer.json."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(byte_symbols(), _byte_level, leading_space=False)
    # The decoder of sentencepiece writes a space for `SPACE` (Replace) and bytes for byte tokens
    # (ByteFallback), joins the parts (Fuse), and may strip the space that encoding has added.
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"]:
        writes_spaces = steps[0]["pattern"] == {"String": SPACE} and steps[0]["content"] == " "
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        last_steps = steps[3:]
        if writes_spaces and last_steps in ([], [strip]):
            byte_names = [f"<0x{byte:02X}>" for byte in range(256)]
            return Spelling(byte_names, _sentencepiece, leading_space=last_steps == [strip])
    raise DataError(
        "only byte pair encoding on bytes is supported: byte-level, as of GPT-2, Llama 3 and Qwen, "
        "or of sentencepiece with byte fallback, as of Llama 2; "
        f"the decoder is {', '.join(map(str, kinds))}"
    )


def count_beginning_chars(token: bytes) -> int:
    """Count the characters that begin in a token.

    In UTF-8, a byte of the form 10xxxxxx continues a character (RFC 3629).
    """
    return sum((byte & 0xC0) != 0x80 for byte in token)


def byte_symbols() -> list[str]:
    """Return the printable character that byte-level vocabularies write for each byte.

    All such vocabularies use the table of GPT-2 (Radford et al. 2019).
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    symbols: list[str] = []
    num_unprintable = 0
    for byte in range(256):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            # The other bytes, such as those of control characters and the space, get the characters
            # from code point 256 on, in order.
            symbols.append(chr(256 + num_unprintable))
            num_unprintable += 1
    return symbols


BYTE_OF = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
"""The byte of each symbol of `byte_symbols`."""


def _byte_level(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[symbol] for symbol in token)
    except KeyError:
        raise DataError(f"the token {token!r} is not made of bytes") from None


def _sentencepiece(token: str) -> bytes:
    match = BYTE.fullmatch(token)
    return bytes.fromhex(match[1]) if match else token.replace(SPACE, " ").encode()
