"""The bytes that the tokens of a tokenizer.json stand for, in the two spellings of byte pair encoding on bytes."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from gpt.system.errors import DataError

SPACE = "▁"
"""What sentencepiece writes for a space."""
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A token of sentencepiece for one byte."""


class Spelling(NamedTuple):
    """How a vocabulary writes its tokens.

    Attributes:
        byte_names: the tokens of the 256 bytes.
        to_bytes: the bytes of a token; raises DataError.
        leading_space: a text is encoded with one space more at its beginning, which decoding takes away.
    """

    byte_names: list[str]
    to_bytes: Callable[[str], bytes]
    leading_space: bool


def spelling_of(decoder: Any) -> Spelling:
    """Return how a vocabulary is written, given the decoder of its tokenizer.json.

    Raises:
        DataError: in neither of the ways that are supported.
    """
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(byte_symbols(), _byte_level, leading_space=False)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0]["pattern"] == {"String": SPACE}:
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        if steps[0]["content"] == " " and steps[3:] in ([], [strip]):
            return Spelling([f"<0x{byte:02X}>" for byte in range(256)], _sentencepiece, leading_space=steps[3:] != [])
    raise DataError(
        "only byte pair encoding on bytes is supported: byte-level, as of GPT-2, Llama 3 and Qwen, or of sentencepiece "
        f"with byte fallback, as of Llama 2; the decoder is {', '.join(map(str, kinds))}"
    )


def byte_symbols() -> list[str]:
    """Return the printable character that byte-level vocabularies write for each byte (Radford et al. 2019, GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 256 + index for index, byte in enumerate(others)}
    return [chr(codes[byte]) for byte in range(256)]


BYTE_OF = {symbol: byte for byte, symbol in enumerate(byte_symbols())}


def _byte_level(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[symbol] for symbol in token)
    except KeyError:
        raise DataError(f"the token {token!r} is not made of bytes") from None


def _sentencepiece(token: str) -> bytes:
    match = BYTE.fullmatch(token)
    return bytes.fromhex(match[1]) if match else token.replace(SPACE, " ").encode()
