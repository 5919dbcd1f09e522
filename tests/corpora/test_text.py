"""Reading a corpus in pieces gives what reading it whole would."""

import codecs
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.corpora import text as text_module
from gpt.corpora.text import distinct_characters, read_pieces
from gpt.data.tokenizers import code_points
from gpt.errors import DataError

# every length of a character in UTF-8, and line ends of each kind side by side
AWKWARD = "aé€𝄞\r\n\r\r\n\n\ré\r\n𝄞𝄞\n\r"
PIECES = [1, 2, 3, 4, 5, 7, 1000]


def reading(path: Path, content: bytes, newlines: str = "keep") -> str:
    """The text of a file of this content."""
    path.write_bytes(content)
    return "".join(read_pieces(path, newlines))


def refusal(path: Path, content: bytes, newlines: str = "keep") -> str:
    """What is said about a file of this content."""
    with pytest.raises(DataError) as caught:
        reading(path, content, newlines)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "text.txt"


@pytest.fixture(params=PIECES, ids=lambda size: f"{size}-byte-pieces")
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that are read at a time."""
    monkeypatch.setattr(text_module, "PIECE", request.param)
    return int(request.param)


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "marked"])
@pytest.mark.parametrize(("newlines", "expected"), [("keep", AWKWARD), ("lf", AWKWARD.replace("\r\n", "\n"))])
def test_a_boundary_may_cut_characters_and_line_ends(path: Path, mark: bytes, newlines: str, expected: str) -> None:
    assert reading(path, mark + AWKWARD.encode(), newlines) == expected


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("ab\r\n\n") | st.characters(codec="utf-8", exclude_characters="\0"), max_size=40),
    size=st.integers(1, 9),
    mark=st.sampled_from([b"", codecs.BOM_UTF8]),
)
def test_any_text_reads_the_same_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, mark: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    text = text.lstrip("\ufeff")  # at the very start it is the mark
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "PIECE", size)
        assert reading(path, mark + text.encode(), "keep") == text
        assert reading(path, mark + text.encode(), "lf") == text.replace("\r\n", "\n")


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("text", ["a\r\nb", "\r\n", "ab\n\r\n", "abc\r\n", "abcd\r\n"])
def test_crlf_is_refused_with_the_two_ways_out(path: Path, text: str) -> None:
    said = refusal(path, text.encode(), "strict")
    assert "CRLF" in said
    assert "data.newlines=lf" in said
    assert "data.newlines=keep" in said


@pytest.mark.usefixtures("piece")
def test_a_carriage_return_of_its_own_is_a_character_like_any_other(path: Path) -> None:
    assert reading(path, b"a\rb\n\rc\r", "strict") == "a\rb\n\rc\r"


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "marked"])
@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        (b"", b"\xff"),
        (b"ab", b"\xff"),
        ("aé€𝄞".encode() * 3, b"\x80"),
        ("é".encode() * 11, b"\xc3("),
        (b"abcdefg", b"\xe2\x82"),  # the file ends within a character
        (b"abcdefgh", b"\xf0\x9d\x84"),
        (b"abcde", b"\xe2\x82a"),
        (b"abc", "é".encode("latin-1") + b"t"),
    ],
)
def test_the_first_wrong_byte_is_told_by_its_place_in_the_file(
    path: Path, mark: bytes, before: bytes, wrong: bytes
) -> None:
    said = refusal(path, mark + before + wrong)
    assert f"is not UTF-8: byte {len(mark) + len(before)} (" in said


def test_a_wrong_byte_is_found_far_behind_the_first_piece(path: Path) -> None:
    place = text_module.PIECE + 5
    said = refusal(path, b"a" * place + b"\xff")
    assert f"byte {place:,} (invalid start byte)" in said


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("order", ["le", "be"])
def test_a_wide_encoding_is_named_with_how_to_convert_it(path: Path, encoding: str, order: str) -> None:
    content = "\ufeffabc\n".encode(f"{encoding}-{order}")
    assert f"is {encoding}; save it as UTF-8 first, for example: iconv -f {encoding} -t UTF-8" in refusal(path, content)


@pytest.mark.parametrize("content", ["abc\n".encode("utf-16-le"), b"\x7fELF\x02\x01\x01\0\0\0", b"abc\0"])
def test_a_file_with_nul_bytes_is_no_text(path: Path, content: bytes) -> None:
    assert "has NUL bytes" in refusal(path, content)


@pytest.mark.parametrize("content", [b"", codecs.BOM_UTF8])
def test_a_file_of_nothing_reads_as_nothing(path: Path, content: bytes) -> None:
    assert reading(path, content) == ""


def test_only_a_mark_at_the_very_start_is_left_out(path: Path) -> None:
    assert reading(path, codecs.BOM_UTF8 + "a\ufeffb".encode()) == "a\ufeffb"


def test_a_file_is_not_read_into_memory_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "PIECE", 10)
    path.write_bytes(b"a" * 95)
    assert max(len(piece) for piece in read_pieces(path, "keep")) == 10


def test_a_file_that_cannot_be_opened_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
        list(read_pieces(tmp_path, "keep"))
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        list(read_pieces(tmp_path / "none.txt", "keep"))


@pytest.mark.usefixtures("piece")
def test_the_distinct_characters_are_sorted_and_from_everywhere_in_the_file(path: Path) -> None:
    path.write_bytes(AWKWARD.encode() + b"z")
    assert distinct_characters(path, "keep") == sorted(set(AWKWARD + "z"))
    path.write_bytes(b"b\r\na")
    assert distinct_characters(path, "lf") == ["\n", "a", "b"]


def test_code_points_are_those_of_each_character() -> None:
    assert code_points("aé𝄞\ud800").tolist() == [0x61, 0xE9, 0x1D11E, 0xD800]
    assert code_points("").tolist() == []
