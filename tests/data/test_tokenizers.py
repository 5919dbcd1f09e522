"""Text to ids and back, whatever the text."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import (
    MAX_LISTED,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    smallest_dtype,
)
from gpt.errors import DataError

MIXED = "Hé, 𝄞 costs 5 € — ok?\n"


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What comes out after each id, and at the end."""
    decoder = tokenizer.stream()
    return [*(decoder.feed(index) for index in ids), decoder.flush()]


@settings(max_examples=200, deadline=None)
@given(text=st.text(min_size=1))
def test_a_text_comes_back_from_its_characters_ids(text: str) -> None:
    tokenizer = CharTokenizer(text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
    assert len(ids) == len(text)
    assert "".join(streamed(tokenizer, ids.tolist())) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_a_text_comes_back_from_its_bytes(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert bytes(ids.tolist()) == text.encode("utf-8")
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text


@pytest.mark.parametrize("tokenizer", [CharTokenizer("ab"), ByteTokenizer()])
def test_no_text_is_no_ids_of_the_same_type(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").dtype == tokenizer.encode("ab").dtype == np.int64
    assert tokenizer.encode_narrow("").dtype == tokenizer.encode_narrow("ab").dtype == np.uint8
    assert len(tokenizer.encode("")) == 0
    assert tokenizer.decode([]) == ""


def test_the_vocabulary_is_the_sorted_characters_and_its_two_tables_are_inverse() -> None:
    tokenizer = CharTokenizer("hello, wörld 𝄞\n")
    assert tokenizer.itos == sorted(set("hello, wörld 𝄞\n"))
    assert [tokenizer.stoi[char] for char in tokenizer.itos] == list(range(tokenizer.vocab_size))
    assert tokenizer.encode("".join(tokenizer.itos)).tolist() == list(range(tokenizer.vocab_size))


def test_the_order_in_which_characters_come_does_not_matter() -> None:
    assert CharTokenizer("cab").encode("abc").tolist() == CharTokenizer(["b", "a", "c", "a"]).encode("abc").tolist()


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "u1"), (2, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")],
)
def test_ids_have_the_smallest_unsigned_type_that_holds_them(vocab_size: int, dtype: str) -> None:
    tokenizer = CharTokenizer(map(chr, range(vocab_size)))
    last = chr(vocab_size - 1)
    assert smallest_dtype(vocab_size) == tokenizer.encode_narrow(last).dtype == np.dtype(dtype)
    assert tokenizer.encode(last).tolist() == [vocab_size - 1]


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="at least one character"):
        CharTokenizer("")


def test_unknown_characters_are_each_told_once_with_their_first_place() -> None:
    with pytest.raises(DataError) as caught:
        CharTokenizer("abc\n").encode("abZcé\nZ𝄞Z")
    assert str(caught.value).startswith("characters outside the vocabulary of 4: 'Z' at 2, 'é' at 4, '𝄞' at 7; ")


@pytest.mark.parametrize(
    ("count", "more"), [(MAX_LISTED, None), (MAX_LISTED + 1, "and 1 more"), (500, f"and {500 - MAX_LISTED} more")]
)
def test_only_so_many_unknown_characters_are_listed(count: int, more: str | None) -> None:
    with pytest.raises(DataError) as caught:
        CharTokenizer("a").encode("".join(chr(0x4E00 + index) for index in range(count)))
    assert str(caught.value).count(" at ") == MAX_LISTED
    assert ("more" in str(caught.value)) == (more is not None)
    assert more is None or more in str(caught.value)


@pytest.mark.parametrize("text", ["\x00", "`", "b", "é", "\uffff", "𝄞", "\U0010ffff", "\ud800"])
def test_a_character_below_between_or_above_the_vocabulary_is_unknown(text: str) -> None:
    with pytest.raises(DataError, match=r"outside the vocabulary of 2: .* at 1;"):
        CharTokenizer("ac").encode(f"a{text}c")


@pytest.mark.parametrize(
    ("chars", "replacement", "expected"),
    [
        ("abc?! ", None, "a??c"),
        ("abc! ", None, "a  c"),
        ("abc!", None, "a!!c"),  # the first of the vocabulary
        ("abc?", "b", "abbc"),
    ],
)
def test_unknown_characters_can_be_replaced(chars: str, replacement: str | None, expected: str) -> None:
    tokenizer = CharTokenizer(chars, unknown="replace", replacement=replacement)
    ids = tokenizer.encode_narrow("aé𝄞c")
    assert tokenizer.decode(ids) == expected
    assert ids.dtype == np.uint8


def test_unknown_characters_can_be_dropped() -> None:
    tokenizer = CharTokenizer("abc", unknown="drop")
    assert tokenizer.decode(tokenizer.encode("éa𝄞bc\x00")) == "abc"
    assert tokenizer.encode("𝄞").tolist() == []


def test_a_replacement_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(DataError, match="replacement 'z' is not in the vocabulary"):
        CharTokenizer("abc", unknown="replace", replacement="z")


def test_another_policy_is_refused_with_those_that_exist() -> None:
    with pytest.raises(DataError, match="got 'ignore', expected error, replace or drop"):
        CharTokenizer("abc", unknown="ignore")


def test_half_a_character_cannot_be_written_as_bytes() -> None:
    """A prompt holds such halves where the terminal's bytes are not UTF-8."""
    with pytest.raises(DataError, match=r"'\\udcff' at 2 is not a character"):
        ByteTokenizer().encode("ab\udcff")


@pytest.mark.parametrize(
    "tokenizer", [CharTokenizer(MIXED), CharTokenizer(["\x00", '"', "\\", "\u2028"]), ByteTokenizer()]
)
def test_a_tokenizer_comes_back_from_its_json(tokenizer: Tokenizer) -> None:
    text = json.dumps(tokenizer.to_dict())
    again = tokenizer_from_dict(json.loads(text))
    assert type(again) is type(tokenizer)
    assert again.to_dict() == tokenizer.to_dict() == json.loads(text)
    assert again.decode(range(again.vocab_size)) == tokenizer.decode(range(tokenizer.vocab_size))


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        '"char"',
        "3",
        "{}",
        '{"type": "bpe"}',
        '{"type": ["char"], "chars": ["a"]}',
        '{"type": "char"}',
        '{"type": "char", "chars": null}',
        '{"type": "char", "chars": 3}',
        '{"type": "char", "chars": []}',
        '{"type": "char", "chars": ["a", 1]}',
        '{"type": "char", "chars": ["a", ""]}',
        '{"type": "char", "chars": ["a", "bc"]}',
    ],
)
def test_what_does_not_describe_a_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        tokenizer_from_dict(json.loads(text))


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_bytes_come_out_of_the_stream_one_whole_character_at_a_time(text: str) -> None:
    pieces = streamed(ByteTokenizer(), ByteTokenizer().encode(text).tolist())
    assert [piece for piece in pieces if piece] == list(text)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 255) | st.sampled_from(list("é€𝄞".encode())), max_size=30))
def test_what_the_stream_gives_is_what_decode_gives(ids: list[int]) -> None:
    """For bytes that are not UTF-8 too: an untrained model writes little else."""
    assert "".join(streamed(ByteTokenizer(), ids)) == ByteTokenizer().decode(ids)


def test_bytes_that_are_no_character_are_shown_as_such_at_once_or_at_the_end() -> None:
    assert streamed(ByteTokenizer(), [0xFF, 0x61]) == ["\ufffd", "a", ""]
    assert streamed(ByteTokenizer(), [0xE2, 0x82]) == ["", "", "\ufffd"]


def test_two_streams_of_a_tokenizer_do_not_mix() -> None:
    tokenizer = ByteTokenizer()
    one, other = tokenizer.stream(), tokenizer.stream()
    first, second = tokenizer.encode("é").tolist()
    assert one.feed(first) == ""
    assert other.feed(ord("a")) == "a"
    assert one.feed(second) == "é"
