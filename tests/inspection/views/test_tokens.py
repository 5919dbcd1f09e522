import pytest
import torch

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.inspection.views.tokens import labels_of, most_likely, one_character

CHARS = "\x00\t\n\r a$é\u0301\u200b中😀\u2028"


def test_characters_are_shown_or_named() -> None:
    tokenizer = CharTokenizer(CHARS)
    labels = labels_of(tokenizer, (tokenizer.stoi[char] for char in CHARS))
    named = ["U+0000", "⇥", "⏎", "CR", "␣", "a", "$", "é", "\u0301", "U+200B", "中", "😀", "U+2028"]
    assert labels == named  # U+200B has no width, and U+2028 would break a line


def test_bytes_outside_ascii_are_hexadecimal() -> None:
    labels = labels_of(ByteTokenizer(), "aé\n".encode())
    assert labels == ["a", "c3", "a9", "⏎"]
    assert labels_of(ByteTokenizer(), [0, 127, 128, 255]) == ["U+0000", "U+007F", "80", "ff"]


def test_ids_that_the_tokenizer_does_not_know_are_numbered() -> None:
    assert labels_of(CharTokenizer("ab"), [0, 1, 2, 63]) == ["a", "b", "#2", "#63"]
    assert labels_of(ByteTokenizer(), [256]) == ["#256"]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer(CHARS)], ids=["byte", "char"])
def test_every_label_is_short_visible_and_its_own(tokenizer: ByteTokenizer | CharTokenizer) -> None:
    labels = labels_of(tokenizer, range(tokenizer.vocab_size))
    assert len(set(labels)) == len(labels) == tokenizer.vocab_size
    assert all(1 <= len(label) <= 6 and label.isprintable() and not label.isspace() for label in labels)


@pytest.mark.parametrize(
    ("label", "shown"), [("a", "a"), ("⏎", "⏎"), ("CR", "·"), ("c3", "·"), ("#20", "·"), ("", "·")]
)
def test_where_there_is_room_for_one_character(label: str, shown: str) -> None:
    assert one_character(label) == shown


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_the_first_of_each_row(count: int) -> None:
    rows = most_likely(torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.125, 0.375]]), count)
    assert rows == [[(1, 0.75), (0, 0.25), (2, 0.0)][:count], [(0, 0.5), (2, 0.375), (1, 0.125)][:count]]
