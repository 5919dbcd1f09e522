"""Tokens for display: short visible labels, and the most likely tokens of a distribution."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import Tensor

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.system.errors import InputError

View = dict[str, Any]
"""A view of one text as plain data, shown by tables, pictures, pages and JSON."""
Alternative = tuple[int, float]
"""A token id and its probability."""
Kind = Literal["character", "byte", "token"]
"""What one token is, in a word."""
KINDS: dict[type[Tokenizer], Kind] = {CharTokenizer: "character", ByteTokenizer: "byte"}
VISIBLE = {"\n": "⏎", " ": "␣", "\t": "⇥", "\r": "CR"}
LONGEST = 10
"""Characters of a label in a column of long tokens."""
PLACEHOLDER = "·"
"""Stands for a label without room or glyph."""


def kind_of(tokenizer: Tokenizer) -> Kind:
    """Return what one of a tokenizer's tokens is."""
    return KINDS.get(type(tokenizer), "token")


def labels_of(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return one label per id: its text, with white space made visible; hexadecimal if it is invisible."""
    # a model may have more
    contents = ((i, tokenizer.token_bytes(i) if i < tokenizer.vocab_size else b"") for i in ids)
    return [label_of(content) or f"#{index}" for index, content in contents]


def label_of(content: bytes) -> str:
    """Return the label of a token's bytes; empty where there are none: an id between others may have no token."""
    try:
        return "".join(map(_visible, content.decode()))
    except UnicodeDecodeError:
        return content.hex()


def _visible(character: str) -> str:
    if character in VISIBLE:
        return VISIBLE[character]
    return character if character.isprintable() else f"U+{ord(character):04X}"


def mostly_characters(labels: Sequence[str]) -> bool:
    """Return whether at least half of the labels are single characters, which fit into narrow columns."""
    return 2 * sum(len(label) == 1 for label in labels) >= len(labels)


def shorten(label: str, width: int = LONGEST) -> str:
    """Return the label, cut with an ellipsis if it is longer than the columns of long tokens."""
    return label if len(label) <= width else label[: width - 1] + "…"


def one_character(label: str) -> str:
    """Return the label if it is one character, else the placeholder: cut off, it would be another token's label."""
    return label if len(label) == 1 else PLACEHOLDER


def most_likely(probabilities: Tensor, count: int) -> list[list[Alternative]]:
    """Return the most likely tokens of each row of probabilities (N, V), at most V, the most likely first."""
    values, ids = probabilities.topk(min(count, probabilities.size(-1)))
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]


def with_labels(labels: list[str], alternatives: Iterable[Alternative]) -> list[tuple[str, float]]:
    """Return alternatives with labels in place of ids, given the label of every id."""
    return [(labels[index], probability) for index, probability in alternatives]


def require_finite(values: Tensor) -> None:
    """Raise InputError on infinities or NaN, which neither a table nor JSON can show."""
    if not values.isfinite().all():
        raise InputError(
            "the model gives values that are not finite: an edit is too strong, or the weights are damaged"
        )
