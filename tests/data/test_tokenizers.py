"""Text to ids and back, whatever the text."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import MAX_LISTED, ByteTokenizer, CharTokenizer, Tokenizer, smallest_dtype
from gpt.system.errors import DataError


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What comes out after each id, and at the end."""
    decoder = tokenizer.stream()
    return [*(decoder.feed(index) for index in ids), decoder.flush()]


@given(text=st.text(min_size=1))
def test_a_text_comes_back_from_its_ids_and_the_tokenizer_from_its_json(text: str) -> None:
    chars, data = CharTokenizer(text), ByteTokenizer()
    assert bytes(data.encode(text).tolist()) == text.encode("utf-8")
    assert chars.itos == sorted(set(text))
    assert chars.encode(text).tolist() == [chars.itos.index(char) for char in text]
    assert [piece for piece in streamed(data, data.encode(text).tolist()) if piece] == list(text)
    for tokenizer in (chars, data):
        again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
        assert (type(again), again.to_dict()) == (type(tokenizer), tokenizer.to_dict())
        ids = again.encode(text)
        assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
        assert "".join(streamed(tokenizer, ids.tolist())) == text
        assert tokenizer.count_chars(ids) == len(text)


def test_a_vocabulary_with_half_of_a_surrogate_pair_is_written_as_it_is() -> None:
    tokenizer = tokenizer_from_dict({"type": "char", "chars": ["a", "\ud800"]})
    assert streamed(tokenizer, [1, 0, 1]) == ["\ud800", "a", "\ud800", ""]
    assert tokenizer.decode([1, 0]) == "\ud800a"


@pytest.mark.parametrize("tokenizer", [CharTokenizer("ab"), ByteTokenizer()])
def test_no_text_is_no_ids_of_the_same_type(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").dtype == tokenizer.encode("ab").dtype == np.int64
    assert tokenizer.encode_narrow("").dtype == tokenizer.encode_narrow("ab").dtype == np.uint8
    assert (len(tokenizer.encode("")), tokenizer.decode([])) == (0, "")


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")])
def test_ids_have_the_smallest_unsigned_type_that_holds_them(vocab_size: int, dtype: str) -> None:
    ids = CharTokenizer(map(chr, range(vocab_size))).encode_narrow(chr(vocab_size - 1))
    assert smallest_dtype(vocab_size) == ids.dtype == np.dtype(dtype)
    assert ids.tolist() == [vocab_size - 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chars": ""}, "at least one character"),
        ({"chars": "abc", "unknown": "ignore"}, "got 'ignore', expected error, replace or drop"),
    ],
)
def test_what_is_no_vocabulary_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CharTokenizer(**arguments)


def test_unknown_characters_are_each_told_once_with_their_first_place() -> None:
    with pytest.raises(DataError) as caught:
        CharTokenizer("abc\n").encode("abZcé\nZ𝄞Z")
    assert str(caught.value).startswith("characters outside the vocabulary of 4: 'Z' at 2, 'é' at 4, '𝄞' at 7; ")
    for count, more in ((MAX_LISTED, "; "), (MAX_LISTED + 1, " and 1 more; "), (500, " and 490 more; ")):
        with pytest.raises(DataError) as caught:
            CharTokenizer("a").encode("".join(chr(0x4E00 + index) for index in range(count)))
        assert str(caught.value).count(" at ") == MAX_LISTED
        assert f" at 9{more}" in str(caught.value)


@pytest.mark.parametrize("text", ["\x00", "`", "b", "é", "\uffff", "𝄞", "\U0010ffff", "\ud800"])
def test_a_character_below_between_or_above_the_vocabulary_is_unknown(text: str) -> None:
    with pytest.raises(DataError, match=r"outside the vocabulary of 2: .* at 1;"):
        CharTokenizer("ac").encode(f"a{text}c")
    assert CharTokenizer("ac", unknown="drop").encode(f"a{text}c").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("chars", "expected"),
    # without a question mark and a space, the first of the vocabulary
    [("abc?! ", "a??c"), ("abc! ", "a  c"), ("abc!", "a!!c")],
)
def test_unknown_characters_can_be_replaced(chars: str, expected: str) -> None:
    tokenizer = CharTokenizer(chars, unknown="replace")
    ids = tokenizer.encode_narrow("aé𝄞c")
    assert (tokenizer.decode(ids), ids.dtype) == (expected, np.uint8)


def test_half_a_character_as_of_a_terminal_that_is_not_utf8_cannot_be_written_as_bytes() -> None:
    with pytest.raises(DataError, match=r"'\\udcff' at 2 is not a character"):
        ByteTokenizer().encode("ab\udcff")


@pytest.mark.parametrize(
    "saved",
    [
        *(None, [], "char", 3, {}, {"type": "bpe"}, {"type": ["char"], "chars": ["a"]}, {"type": "char"}),
        *({"type": "char", "chars": chars} for chars in (None, 3, [], ["a", 1], ["a", ""], ["a", "bc"])),
    ],
)
def test_what_does_not_describe_a_tokenizer_is_refused(saved: object) -> None:
    with pytest.raises(DataError):
        tokenizer_from_dict(saved)


@given(ids=st.lists(st.integers(0, 255) | st.sampled_from(list("é€𝄞".encode())), max_size=30))
def test_what_the_stream_gives_of_any_bytes_is_what_decode_gives(ids: list[int]) -> None:
    assert "".join(streamed(ByteTokenizer(), ids)) == ByteTokenizer().decode(ids)


def test_bytes_that_are_no_character_are_shown_as_such_at_once_or_at_the_end() -> None:
    assert streamed(ByteTokenizer(), [0xFF, 0x61]) == ["\ufffd", "a", ""]
    assert streamed(ByteTokenizer(), [0xE2, 0x82]) == ["", "", "\ufffd"]
    one, other = (ByteTokenizer().stream() for _ in range(2))
    first, second = "é".encode()
    assert (one.feed(first), other.feed(ord("a")), one.feed(second)) == ("", "a", "é")
