"""Remember the ids of words, so that byte pair encoding merges each of them once."""

import re
from collections.abc import Callable
from typing import Any

LONGEST = 40
"""Characters of a stretch that is remembered; longer ones rarely come again."""
MOST = 1 << 16
"""Stretches, and words, that are remembered: some 12 MB of each; then they are forgotten, and it begins anew."""

_STRETCHES = re.compile(
    r"[ \n\t\r]*[^ \n\t\r]+"
    r"(?:(?<=[^\S \n\t\r])[ \n\t\r]+[^ \n\t\r]*)*"  # other white space may be one with that after it
    r"|[ \n\t\r]+"
)
"""Matches of GPT-2's pattern never reach from a character that is not white space into white space after it."""

_ASCII_WORDS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ \t\n\r\f\vA-Za-z0-9]+"
    r"|[ \t\n\r\f\v]+(?![^ \t\n\r\f\v])|[ \t\n\r\f\v]+"
)
"""GPT-2's pattern (Radford et al. 2019) for ASCII, where its classes of Unicode are these."""


class WordMemo:
    """Encodes texts as another function does, which is called once for a word.

    Args:
        encode: returns the ids of a text as bytes; it splits at GPT-2's pattern, as `applies_to` finds out.
    """

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode
        self._words = _Memo(encode)
        self._stretches = _Memo(self._encode_stretch)

    def encode(self, text: str) -> bytes:
        return b"".join(map(self._stretches.__getitem__, _STRETCHES.findall(text)))

    def _encode_stretch(self, stretch: str) -> bytes:
        if not stretch.isascii():
            return self._encode(stretch)
        return b"".join(map(self._words.__getitem__, _ASCII_WORDS.findall(stretch)))


def applies_to(content: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json encodes each match of GPT-2's pattern by itself, always to the same ids."""
    pre_tokenizer = content.get("pre_tokenizer") or {}
    added = content.get("added_tokens") or []
    return (
        content.get("normalizer") is None
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("use_regex", True)
        and not pre_tokenizer.get("add_prefix_space")
        and not content["model"].get("dropout")
        and not added
    )


class _Memo(dict[str, bytes]):
    """Values of a function, by its argument."""

    def __init__(self, function: Callable[[str], bytes]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: str) -> bytes:
        value = self._function(text)
        if len(text) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[text] = value
        return value
