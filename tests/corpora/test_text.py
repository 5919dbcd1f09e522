"""Reading a text in pieces gives what reading it whole would."""

import codecs
import io
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt.corpora import text as text_module
from gpt.corpora.text import characters_in, decode_pieces, distinct_code_points
from gpt.errors import DataError

# every length of a character in UTF-8, and line ends of each kind side by side
AWKWARD = "aé€𝄞\r\n\r\r\n\n\ré\r\n𝄞𝄞\n\r"
MARKS = st.sampled_from([b"", codecs.BOM_UTF8])
SIZES = st.integers(1, 9) | st.just(text_module.PIECE)


def reading(content: bytes, newlines: str = "keep", size: int = text_module.PIECE) -> str:
    """The text of this content, read so many bytes at a time."""
    with patch.object(text_module, "PIECE", size):
        pieces = list(decode_pieces(io.BytesIO(content).read, Path("a.txt"), newlines))
    assert all(len(piece.encode()) < size + 6 for piece in pieces)
    return "".join(pieces)


def refusal(content: bytes, newlines: str = "keep", size: int = text_module.PIECE) -> str:
    with pytest.raises(DataError) as caught:
        reading(content, newlines, size)
    return str(caught.value)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("ab\r\n\n") | st.characters(codec="utf-8", exclude_characters="\0"), max_size=40),
    size=SIZES,
    mark=MARKS,
)
@example(AWKWARD, 3, codecs.BOM_UTF8)
@example("a\ufeffb", 2, codecs.BOM_UTF8)
@example("", 1, codecs.BOM_UTF8)
def test_any_text_reads_the_same_in_pieces_of_any_size(text: str, size: int, mark: bytes) -> None:
    # at the very start it is the mark
    text = text.lstrip("\ufeff")
    content = mark + text.encode()
    assert reading(content, "keep", size) == text
    assert reading(content, "lf", size) == text.replace("\r\n", "\n")


@given(size=SIZES, mark=MARKS)
@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        *((before, b"\xff") for before in (b"", b"ab", b"a" * (text_module.PIECE + 5))),
        ("aé€𝄞".encode() * 3, b"\x80"),
        ("é".encode() * 11, b"\xc3("),
        # the file ends within a character
        (b"abcdefg", b"\xe2\x82"),
        (b"abcdefgh", b"\xf0\x9d\x84"),
        (b"abcde", b"\xe2\x82a"),
        (b"abc", "é".encode("latin-1") + b"t"),
    ],
    ids=range(9),
)
@settings(max_examples=15, deadline=None)
def test_the_first_wrong_byte_is_told_by_its_place_in_the_file(
    before: bytes, wrong: bytes, size: int, mark: bytes
) -> None:
    size = size if len(before) < 100 else text_module.PIECE
    assert f"is not UTF-8: byte {len(mark) + len(before):,} (" in refusal(mark + before + wrong, size=size)


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("order", ["le", "be"])
def test_a_wide_encoding_is_named_with_how_to_convert_it(encoding: str, order: str) -> None:
    content = "\ufeffabc\n".encode(f"{encoding}-{order}")
    assert f"is {encoding}; save it as UTF-8 first, for example: iconv -f {encoding} -t UTF-8" in refusal(content)


@pytest.mark.parametrize("content", ["abc\n".encode("utf-16-le"), b"\x7fELF\x02\x01\x01\0\0\0", b"abc\0"])
def test_a_file_with_nul_bytes_is_no_text(content: bytes) -> None:
    assert "has NUL bytes" in refusal(content)


@given(st.lists(st.text(st.characters())))
def test_the_distinct_characters_of_some_texts_are_sorted(texts: list[str]) -> None:
    assert characters_in(map(distinct_code_points, texts)) == sorted(set("".join(texts)))
