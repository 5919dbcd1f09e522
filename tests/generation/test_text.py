from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.config import SamplingParams
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.generation.text import TextStream, encode_prompt, encode_prompts
from gpt.system.errors import DataError, GenerationError

LETTERS = CharTokenizer("\nabcdefgh")


def encoded(
    prompt: str, tokenizer: Tokenizer = LETTERS, block_size: int = 4, **params: object
) -> list[int]:
    ids = encode_prompt(tokenizer, prompt, SamplingParams(**params), block_size)
    assert all(type(index) is int for index in ids)
    return ids


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
def test_empty_prompt_starts_after_a_line_end_or_the_first_id(
    tokenizer: Tokenizer, ids: list[int]
) -> None:
    assert encoded("", tokenizer) == ids


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ("abcde", {}, r"5 tokens, more than the window of 4; .*long_prompt=crop"),
        # An unknown character is refused even in the part that would be cropped.
        (
            "€abcdefgh",
            {"long_prompt": "crop"},
            (
                r"^the prompt has characters outside the vocabulary of 9: '€' at 0; leave them "
                r"out, or pass --unknown drop"
            ),
        ),
        (b"abc", {}, "^the prompt is a bytes, expected a text$"),
    ],
)
def test_prompt_is_refused_with_a_reason(prompt: Any, params: Any, error: str) -> None:
    with pytest.raises((DataError, GenerationError), match=error):
        encoded(prompt, **params)


def test_line_ends_of_a_prompt_are_those_of_a_corpus() -> None:
    for ends in ("\r\n", "\r", "\r\r\n", "\n"):
        for tokenizer in (LETTERS, ByteTokenizer()):
            assert encoded(f"a{ends}b", tokenizer) == tokenizer.encode("a\nb").tolist()


def test_of_several_prompts_the_wrong_one_is_named() -> None:
    params = SamplingParams()
    assert encode_prompts(LETTERS, ["ab", "c"], params, 4) == [[1, 2], [3]]
    for wrong, error in (
        ("a€", "the prompt has characters outside"),
        ("abcde", "the prompt has 5 tokens"),
    ):
        with pytest.raises((DataError, GenerationError), match=f"^prompt 2 of 3: {error}"):
            encode_prompts(LETTERS, ["ab", wrong, "c"], params, 4)
        with pytest.raises((DataError, GenerationError), match=f"^{error}"):
            encode_prompts(LETTERS, [wrong], params, 4)


def test_prompt_becomes_its_ids_or_the_last_of_them() -> None:
    assert (
        encoded("abcd", long_prompt="refuse") == encoded("abcd", long_prompt="crop") == [1, 2, 3, 4]
    )
    assert encoded("abcdefgh", long_prompt="crop") == [5, 6, 7, 8]
    assert encoded("aéé", ByteTokenizer(), long_prompt="crop") == [0xC3, 0xA9, 0xC3, 0xA9]


ALPHABET = "ab\né🙂"


def shown(text: str, stop: list[str], tokenizer: Tokenizer) -> list[str]:
    """The pieces shown when a text is fed character by character until a stop, then flushed."""
    stream = TextStream(tokenizer, stop)
    pieces = []
    for character in text:
        pieces.append("")
        for index in tokenizer.encode(character).tolist():
            pieces[-1] += stream.feed(index)
        if stream.stopped:
            break
    return [*pieces, stream.flush()]


def up_to_the_earliest_stop(text: str, stop: list[str]) -> str:
    """Text before the stop that is complete first, the longest of those complete at once."""
    for end in range(len(text) + 1):
        complete = [end - len(each) for each in stop if text[:end].endswith(each)]
        if complete:
            return text[: min(complete)]
    return text


texts = st.text(ALPHABET, max_size=30)
stops = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=3)


@given(
    data=st.data(),
    text=texts,
    stop=stops,
    tokenizer=st.sampled_from([CharTokenizer(ALPHABET), ByteTokenizer()]),
)
def test_stream_shows_text_as_soon_as_no_stop_can_begin_in_it(
    data: st.DataObject, text: str, stop: list[str], tokenizer: Tokenizer
) -> None:
    """At every moment it could still be the whole answer, and nothing is held back that cannot
    begin a stop.
    """
    text += data.draw(st.sampled_from(["", *stop])) + data.draw(texts)
    expected = up_to_the_earliest_stop(text, stop)
    so_far = ""
    *pieces, last = shown(text, stop, tokenizer)
    for fed, piece in enumerate(pieces, start=1):
        so_far += piece
        assert expected.startswith(so_far)
        held = text[len(so_far) : fed]
        is_stopped = fed == len(pieces) and expected != text
        assert is_stopped or not held or any(each.startswith(held) for each in stop)
    assert so_far + last == expected
    assert not any(each in so_far + last for each in stop)


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        ("aaab", ["aab"], ["", "", "a", "", ""]),
        ("abcabc", ["ca"], ["a", "b", "", "", ""]),
        ("abcb", ["abcc", "b"], ["", "a", ""]),
        ("aab", ["b", "ab"], ["", "a", "", ""]),
        ("ab", ["abc"], ["", "", "ab"]),
    ],
)
def test_pieces_are_held_back_while_they_may_begin_a_stop(
    text: str, stop: list[str], pieces: list[str]
) -> None:
    assert shown(text, stop, CharTokenizer("abc\n")) == pieces
