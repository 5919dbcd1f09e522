"""Tokens for display: short visible labels, and the most likely tokens of a distribution."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import Tensor

from gpt.data.pairs import SIGNS
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.system.errors import InputError

View = dict[str, Any]
"""A view of one text as plain data, shown by tables, pictures, pages and JSON."""
Alternative = tuple[int, float]
"""A token id and its probability."""
Kind = Literal["character", "byte", "token"]
"""What one token is, in a word."""
KINDS: dict[type[Tokenizer], Kind] = {CharTokenizer: "character", ByteTokenizer: "byte"}
VISIBLE = {"\n": "⏎", " ": "␣", "\t": "⇥", "\r": "CR", **SIGNS}
"""Signs of white space, and of the marks of items."""
LONGEST = 10
"""Characters of a label in a column of long tokens."""
PLACEHOLDER = "·"
"""Stands for a label that has no room, or for a token without a label."""


def kind_of(tokenizer: Tokenizer) -> Kind:
    """Return what one token of a tokenizer is."""
    return KINDS.get(type(tokenizer), "token")


def labels_of(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return a label for each id: that of its token, or `#ID` where there is no token."""
    labels = []
    for index in ids:
        # A model may have more ids than its tokenizer has tokens.
        content = tokenizer.token_bytes(index) if index < tokenizer.vocab_size else b""
        labels.append(label_of(content) or f"#{index}")
    return labels


def label_of(content: bytes) -> str:
    """Return the label of a token by its bytes.

    It is their text, with white space made visible, or else, where they are no UTF-8, their
    hexadecimal digits. An id that stands for no token has no bytes, and an empty label.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content.hex()
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in VISIBLE:
        return VISIBLE[character]
    if character.isprintable():
        return character
    return f"U+{ord(character):04X}"


def mostly_characters(labels: Sequence[str]) -> bool:
    """Return whether at least half of the labels are single characters.

    These fit into narrow columns. White space is not counted: of words it is every second token.
    """
    counted = [label for label in labels if label not in VISIBLE.values()]
    return 2 * sum(len(label) == 1 for label in counted) >= len(counted)


def shorten(label: str, width: int = LONGEST) -> str:
    """Return the label, cut with an ellipsis if it is longer than a column of long tokens."""
    return label if len(label) <= width else label[: width - 1] + "…"


def one_character(label: str) -> str:
    """Return the label if it is one character, or else the placeholder.

    Its first character alone would be the label of another token.
    """
    return label if len(label) == 1 else PLACEHOLDER


def most_likely(probabilities: Tensor, count: int) -> list[list[Alternative]]:
    """Return the `count` most likely tokens of each row of probabilities (N, V), in their order.

    There are fewer where the vocabulary is smaller than `count`.
    """
    count = min(count, probabilities.size(-1))
    top_values, top_ids = probabilities.topk(count)  # (N, count) each
    # A whole tensor is read back from its device at once.
    rows = zip(top_ids.tolist(), top_values.tolist(), strict=True)
    return [list(zip(ids, values, strict=True)) for ids, values in rows]


def with_labels(labels: list[str], alternatives: Iterable[Alternative]) -> list[tuple[str, float]]:
    """Return alternatives with labels in place of their ids.

    Args:
        labels: the label of every id.
    """
    return [(labels[index], probability) for index, probability in alternatives]


def require_finite(values: Tensor) -> None:
    """Raise InputError on infinities or NaN, which neither a table nor JSON can show."""
    if not values.isfinite().all():
        raise InputError(
            "the model gives values that are not finite: an edit is too strong, or the weights are "
            "damaged"
        )
