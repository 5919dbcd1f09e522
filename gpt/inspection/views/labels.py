"""Token ids as short visible labels, for axes and tables."""

from collections.abc import Iterable

from gpt.data.tokenizers import ByteTokenizer, Tokenizer

VISIBLE = {"\n": "⏎", " ": "␣", "\t": "⇥", "\r": "CR"}

PLACEHOLDER = "·"
"""Stands for a label where there is no room for it, or no glyph."""


def labels_of(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """One label per id: the character, white space made visible; hexadecimal where there is nothing to see."""
    return [_label(tokenizer, index) for index in ids]


def _label(tokenizer: Tokenizer, index: int) -> str:
    if index >= tokenizer.vocab_size:
        return f"#{index}"  # a model's vocabulary may be larger than its tokenizer's
    if isinstance(tokenizer, ByteTokenizer) and index >= 128:
        return f"{index:02x}"
    text = tokenizer.decode([index])
    if text in VISIBLE:
        return VISIBLE[text]
    return text if text.isprintable() else f"U+{ord(text):04X}"


def one_character(label: str) -> str:
    """Return the label where it is one character, else the placeholder: cut off, it would be that of another token."""
    return label if len(label) == 1 else PLACEHOLDER
