import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.generation.text_stream import TextStream

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
