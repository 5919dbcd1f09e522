"""Files give their text, a piece at a time, or a line that says what is wrong with them."""

import codecs
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpt.data import corpus_text
from gpt.data.corpus_text import CorpusText, has_lone_returns
from gpt.data.locating import find_files
from gpt.data.tokenizers import convert_newlines
from gpt.system.errors import DataError
from patience import examples

TEXT = "".join(f"{number} keys and doors.\n" for number in range(5000))
# every length of a character in UTF-8, and line ends of each kind side by side
AWKWARD = "aé€𝄞\r\n\r\r\n\n\ré\r\n𝄞𝄞\n\r"
MARKS = st.sampled_from([b"", codecs.BOM_UTF8])
SIZES = st.integers(1, 9) | st.just(corpus_text.PIECE)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text") / "a.txt"


def reading(file: Path, content: bytes, size: int = corpus_text.PIECE) -> str:
    """The text of this content, read so many bytes at a time."""
    file.write_bytes(content)
    with patch.object(corpus_text, "PIECE", size):
        pieces = list(CorpusText([file]).pieces())
    assert all(len(piece.encode()) < size + 6 for piece in pieces)
    return "".join(pieces)


@given(
    text=st.text(
        st.sampled_from("ab\r\n\n") | st.characters(codec="utf-8", exclude_characters="\0"),
        max_size=40,
    ),
    size=SIZES,
    mark=MARKS,
)
@example(AWKWARD, 3, codecs.BOM_UTF8)
@example("a\ufeffb", 2, codecs.BOM_UTF8)
@example("", 1, codecs.BOM_UTF8)
def test_any_text_reads_the_same_in_pieces_of_any_size(
    file: Path, text: str, size: int, mark: bytes
) -> None:
    text = text.lstrip("\ufeff")  # at the very start it is the mark
    expected = re.sub("\r?\r?\n|\r", "\n", text)
    assert reading(file, mark + text.encode(), size) == convert_newlines(text) == expected
    assert CorpusText([file]).characters() == sorted(set(expected))
    with patch.object(corpus_text, "PIECE", size):
        assert has_lone_returns(file) == ("\r" in text.replace("\r\n", ""))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\rb\r\rc\r", "a\nb\n\nc\n"),
        ("a\r\r\nb\r\r\n", "a\nb\n"),
        ("\r\r\r\n\n\r", "\n\n\n\n"),
        ("\x85\u2028\v", "\x85\u2028\v"),
    ],
)
def test_line_ends_of_every_system_are_read_as_those_of_unix(
    file: Path, text: str, read: str
) -> None:
    assert reading(file, text.encode()) == read == convert_newlines(text)


@given(size=SIZES, mark=MARKS)
@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        *((before, b"\xff") for before in (b"", b"ab", b"a" * (corpus_text.PIECE + 5))),
        ("aé€𝄞".encode() * 3, b"\x80"),
        ("é".encode() * 11, b"\xc3("),
        # the file ends within a character
        (b"abcdefg", b"\xe2\x82"),
        (b"abcdefgh", b"\xf0\x9d\x84"),
        (b"abcde", b"\xe2\x82a"),
    ],
    ids=range(8),
)
@examples(0.1)
def test_first_wrong_byte_is_told_by_its_place_in_the_file(
    file: Path, before: bytes, wrong: bytes, size: int, mark: bytes
) -> None:
    size = size if len(before) < 100 else corpus_text.PIECE
    with pytest.raises(DataError, match=rf"is not UTF-8: byte {len(mark) + len(before):,} \("):
        reading(file, mark + before + wrong, size)


@pytest.mark.parametrize(
    "content",
    ["abc\n".encode("utf-16-le"), b"\x7fELF\x02\x01\x01\0\0\0", b"abc\0", b"abc\n" * 5000 + b"\0"],
    ids=range(4),
)
@pytest.mark.parametrize("size", [3, corpus_text.PIECE])
def test_file_with_nul_bytes_is_no_text(file: Path, content: bytes, size: int) -> None:
    with pytest.raises(DataError, match="has NUL bytes"):
        reading(file, content, size)


def test_byte_pairs_are_learned_from_blocks_all_over_a_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_text, "BLOCK", 1000)
    monkeypatch.setattr(corpus_text, "SAMPLED_BYTES", 20_000)
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = CorpusText([tmp_path / "a.txt"])
    assert "".join(corpus.sample()) == TEXT
    monkeypatch.setattr(corpus_text, "MAX_BYTES_LEARNED_WHOLE", 1000)
    monkeypatch.setattr(corpus_text, "SAMPLE_CHARACTERS", 300)
    sample = list(corpus.sample())
    step = -(
        -len(TEXT) // 20_000
    )  # SAMPLED_BYTES of the text, rounded up: one block in `step` is read
    assert "".join(sample) == "".join(list(corpus.blocks())[::step])
    assert max(map(len, sample)) == 300
    assert step > 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/z.txt", "a/c.md", ".git/config", "a/.hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


def test_folder_or_pattern_names_files_in_order_of_their_paths(folder: Path) -> None:
    assert find_files(folder) == [folder / name for name in ("a/c.md", "a/z.txt", "b.txt")]
    assert find_files(folder / "a" / "[a-z]*.txt") == [folder / "a/z.txt"]
    (folder / "really[1].txt").write_text("x")
    assert find_files(folder / "really[1].txt") == [folder / "really[1].txt"]


def test_links_below_a_folder_or_pattern_are_left_out_and_named(folder: Path) -> None:
    secret = folder.parent / f"{folder.name}.secret"
    secret.write_text("of another folder")
    (folder / "a/z2.txt").symlink_to(secret)
    (folder / "far").symlink_to(folder / "a")
    (folder / "a/zero.txt").symlink_to("/dev/zero")
    own = [folder / name for name in ("a/c.md", "a/z.txt", "b.txt")]
    reports: list[str] = []
    assert find_files(folder, reports.append) == own
    links = ", ".join(str(folder / name) for name in ("a/z2.txt", "a/zero.txt", "far", "loop"))
    assert reports == [
        f"{folder}: links are not followed ({links}): to read one, name it itself in data.path"
    ]
    assert find_files(folder / "a" / "*.txt", reports.append) == [folder / "a/z.txt"]
    assert f"({folder / 'a/z2.txt'}, {folder / 'a/zero.txt'})" in reports[1]
    assert find_files(folder / "[a-f]*" / "z.txt", reports.append) == [folder / "a/z.txt"]
    assert f"({folder / 'far/z.txt'})" in reports[2]
    with pytest.raises(
        DataError, match=r"z2\*\.txt names no files; links are not followed \(.*z2\.txt\)"
    ):
        find_files(folder / "a" / "z2*.txt")
    # what the path itself names is read, through whatever links
    assert find_files(folder / "a/z2.txt", reports.append) == [folder / "a/z2.txt"]
    assert find_files(folder / "far", reports.append) == [folder / "far/c.md", folder / "far/z.txt"]
    assert find_files(folder / "far" / "*.md", reports.append) == [folder / "far/c.md"]
    assert len(reports) == 4


@pytest.mark.parametrize(
    ("make", "named", "message"),
    [
        (
            lambda folder: (folder / "odes [2]").mkdir(),
            "odes [2]/*.txt",
            r"; .* write .*odes \[\[\]2\]/\*\.txt$",
        ),
        (
            lambda folder: (folder / "a/link").symlink_to("nowhere"),
            "a",
            r"link: no such file; set data\.path to",
        ),
        (
            lambda folder: os.mkfifo(folder / "a/pipe"),
            "a",
            r"pipe: not a regular file; set data\.path to",
        ),
        (lambda folder: (folder / "empty").mkdir(), "empty", "names no files; set data"),
        (lambda folder: None, "*.json", r"\*\.json names no files; set data"),
        (
            lambda folder: (folder / "a\nb.txt").touch(),
            "",
            r"a control character in its name, '.*a\\nb\.txt'",
        ),
    ],
    ids=range(6),
)
def test_unreadable_files_are_refused(make: Any, named: str, message: str, folder: Path) -> None:
    make(folder)
    with pytest.raises(DataError, match=message):
        find_files(folder / named)
