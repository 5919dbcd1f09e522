import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.config import SamplingParams
from gpt.data import ByteTokenizer, CharTokenizer
from gpt.data.tokenizers import Tokenizer
from gpt.errors import DataError, GenerationError
from gpt.generation.prompts import encode_prompt

LETTERS = CharTokenizer("\nabcdefgh")


def encoded(prompt: str, tokenizer: Tokenizer = LETTERS, block_size: int = 4, **params: object) -> list[int]:
    ids = encode_prompt(tokenizer, prompt, SamplingParams(**params), block_size)
    assert all(type(index) is int for index in ids)
    return ids


def test_a_prompt_becomes_its_ids() -> None:
    assert encoded("bad") == [2, 1, 4]
    assert encoded("é", ByteTokenizer()) == [0xC3, 0xA9]


@pytest.mark.parametrize(
    ("tokenizer", "ids"),
    [
        (LETTERS, [0]),
        (CharTokenizer("\t\nab"), [1]),
        (CharTokenizer("abc"), [0]),
        (CharTokenizer("\t\nab", unknown="drop"), [1]),
        (CharTokenizer("\tab", unknown="drop"), [0]),
        (CharTokenizer("\tab?", unknown="replace"), [0]),
        (ByteTokenizer(), [10]),
    ],
)
def test_an_empty_prompt_starts_after_a_line_end_or_the_first_id(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert encoded("", tokenizer) == ids


def test_a_prompt_of_which_nothing_is_left_is_an_empty_one() -> None:
    dropping = CharTokenizer("abc", unknown="drop")
    assert encoded("xyz", dropping) == [0]
    with pytest.raises(GenerationError, match="prompt is empty"):
        encoded("xyz", dropping, empty_prompt="refuse")


def test_an_empty_prompt_is_refused_where_that_is_asked_for() -> None:
    with pytest.raises(GenerationError, match="prompt is empty"):
        encoded("", empty_prompt="refuse")


@pytest.mark.parametrize("long_prompt", ["refuse", "crop"])
def test_a_prompt_as_long_as_the_window_is_taken_whole(long_prompt: str) -> None:
    assert encoded("abcd", long_prompt=long_prompt) == [1, 2, 3, 4]


def test_a_prompt_longer_than_the_window_is_refused_with_both_lengths_and_a_way_out() -> None:
    with pytest.raises(GenerationError, match=r"5 tokens, more than the window of 4; .*long_prompt=crop"):
        encoded("abcde")


def test_the_end_of_a_long_prompt_is_taken_where_that_is_asked_for() -> None:
    assert encoded("abcdefgh", long_prompt="crop") == [5, 6, 7, 8]
    assert encoded("aéé", ByteTokenizer(), long_prompt="crop") == [0xC3, 0xA9, 0xC3, 0xA9]


def test_unknown_characters_are_an_error_even_in_the_part_that_would_be_cropped() -> None:
    with pytest.raises(DataError, match="'€' at 0"):
        encoded("€abcdefgh", long_prompt="crop")


@given(
    prompt=st.text(st.sampled_from("ab\n\r\u2028\ud800é𝄞\0"), max_size=8),
    unknown=st.sampled_from(["error", "replace", "drop", "byte"]),
    long_prompt=st.sampled_from(["crop", "refuse"]),
    empty_prompt=st.sampled_from(["start", "refuse"]),
)
def test_any_prompt_gives_one_to_block_size_ids_or_a_reason(
    prompt: str, unknown: str, long_prompt: str, empty_prompt: str
) -> None:
    tokenizer = ByteTokenizer() if unknown == "byte" else CharTokenizer("ab\n", unknown)
    try:
        ids = encoded(prompt, tokenizer, long_prompt=long_prompt, empty_prompt=empty_prompt)
    except (DataError, GenerationError):
        return
    assert 1 <= len(ids) <= 4
    assert all(0 <= index < tokenizer.vocab_size for index in ids)
    known = "".join(char for char in prompt if char in "ab\n")
    if known == prompt != "":
        assert tokenizer.decode(ids) == prompt[-4:]
