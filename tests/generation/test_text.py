import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.config import SamplingParams
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.errors import DataError, GenerationError
from gpt.generation.text import TextStream, encode_prompt

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


ALPHABET = "abc\n"


def shown(text: str, stop: list[str], tokenizer: Tokenizer | None = None) -> list[str]:
    """The pieces shown when a text is fed id by id until a stop, then flushed."""
    tokenizer = tokenizer or CharTokenizer(ALPHABET)
    stream, pieces = TextStream(tokenizer, stop), []
    for index in tokenizer.encode(text).tolist():
        pieces.append(stream.feed(index))
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


@settings(max_examples=500, deadline=None)
@given(text=texts, stop=stops)
def test_what_is_shown_is_the_text_up_to_the_earliest_stop(text: str, stop: list[str]) -> None:
    assert "".join(shown(text, stop)) == up_to_the_earliest_stop(text, stop)


@settings(max_examples=500, deadline=None)
@given(data=st.data(), before=texts, stop=stops.filter(bool), after=texts)
def test_no_stop_text_is_shown_even_in_part(data: st.DataObject, before: str, stop: list[str], after: str) -> None:
    """At every moment, what is shown could still be the whole answer, whichever stop follows."""
    text = before + data.draw(st.sampled_from(stop)) + after
    so_far = ""
    for piece in shown(text, stop):
        so_far += piece
        assert up_to_the_earliest_stop(text, stop).startswith(so_far)
        assert not any(each in so_far for each in stop)


@settings(max_examples=300, deadline=None)
@given(text=texts, stop=stops)
def test_nothing_is_held_back_that_cannot_begin_a_stop(text: str, stop: list[str]) -> None:
    stream, so_far, tokenizer = TextStream(CharTokenizer(ALPHABET), stop), "", CharTokenizer(ALPHABET)
    for fed, index in enumerate(tokenizer.encode(text).tolist(), start=1):
        so_far += stream.feed(index)
        if stream.stopped:
            break
        held = text[len(so_far) : fed]
        assert not held or any(each.startswith(held) for each in stop)


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        ("abc", [], ["a", "b", "c", ""]),
        ("aaab", ["aab"], ["", "", "a", "", ""]),
        ("ababac", ["abac"], ["", "", "", "ab", "", "", ""]),
        ("abcabc", ["ca"], ["a", "b", "", "", ""]),
        ("abc", ["a"], ["", ""]),
        ("cabb", ["ab", "b"], ["c", "", "", ""]),
        ("abcb", ["abcc", "b"], ["", "a", ""]),
        ("aab", ["b", "ab"], ["", "a", "", ""]),
        ("ab", ["abc"], ["", "", "ab"]),
        ("a\n\n", ["\n\n"], ["a", "", "", ""]),
        ("", ["a"], [""]),
    ],
)
def test_pieces_by_hand(text: str, stop: list[str], pieces: list[str]) -> None:
    assert shown(text, stop) == pieces


def test_a_stream_says_when_it_stopped_and_flushes_nothing_after() -> None:
    tokenizer = CharTokenizer("abc")
    stream = TextStream(tokenizer, ["bc"])
    assert [(stream.feed(index), stream.stopped) for index in (0, 1, 2)] == [("a", False), ("", False), ("", True)]
    assert stream.flush() == ""


def test_flush_gives_what_was_held_and_only_once() -> None:
    stream = TextStream(CharTokenizer("abc"), ["abc"])
    assert [stream.feed(index) for index in (0, 1)] == ["", ""]
    assert [stream.flush(), stream.flush()] == ["ab", ""]


@pytest.mark.parametrize("text", ["aé", "日本", "a🙂b", "naïve ☕\n"])
def test_bytes_are_shown_as_whole_characters(text: str) -> None:
    pieces = shown(text, [], ByteTokenizer())
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)
    assert "�" not in "".join(pieces)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [("a日本b", ["本"], "a日"), ("日本語", ["本語"], "日"), ("é🙂é🙂🙂", ["🙂🙂"], "é🙂é"), ("ééa", ["éa"], "é")],
)
def test_stops_of_several_bytes(text: str, stop: list[str], expected: str) -> None:
    assert "".join(shown(text, stop, ByteTokenizer())) == expected


@pytest.mark.parametrize(("stop", "expected"), [([], "a�"), (["�"], "a"), (["a�"], ""), (["a�b"], "a�")])
def test_an_unfinished_character_comes_out_at_the_end_and_can_complete_a_stop(stop: list[str], expected: str) -> None:
    stream = TextStream(ByteTokenizer(), stop)
    text = "".join([stream.feed(index) for index in b"a\xe6\x97"])
    assert text + stream.flush() == expected
    assert stream.stopped is (expected in ("a", ""))


@pytest.mark.parametrize(
    ("tokenizer", "ids", "expected"),
    [
        (CharTokenizer("abc"), [0, 3, 1, 19_999], "a�b�"),
        (ByteTokenizer(), [97, 256, 98], "a�b"),
        (ByteTokenizer(), [0xE6, 0x97, 300, 0xA5], "���"),  # half a character, no byte at all, the other half
    ],
)
def test_ids_beyond_the_tokenizer_are_shown_as_replacement_characters(
    tokenizer: Tokenizer, ids: list[int], expected: str
) -> None:
    stream = TextStream(tokenizer)
    assert "".join([stream.feed(index) for index in ids]) + stream.flush() == expected


@settings(max_examples=200, deadline=None)
@given(ids=st.binary(max_size=20))
def test_any_bytes_are_shown_as_the_tokenizer_decodes_them(ids: bytes) -> None:
    stream = TextStream(ByteTokenizer())
    assert "".join([stream.feed(index) for index in ids]) + stream.flush() == ByteTokenizer().decode(list(ids))
