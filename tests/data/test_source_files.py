"""Which files a path names, in which order, and what is in them."""

from pathlib import Path

import pytest

from gpt.data.source_files import classify, find_files, names_several
from gpt.errors import DataError


@pytest.mark.parametrize(
    ("name", "kind", "packing"),
    [
        ("a.txt", "text", None),
        ("a", "text", None),
        ("a.TXT.GZ", "text", "gzip"),
        ("a.jsonl", "jsonl", None),
        ("a.ndjson.zst", "jsonl", "zstd"),
        ("a.parquet", "parquet", None),
        ("text8.zip", "text", "zip"),
        ("a.b/c.py", "text", None),
    ],
)
def test_suffixes_say_what_a_file_is(name: str, kind: str, packing: str | None) -> None:
    file = classify(Path(name))
    assert (file.kind, file.packing) == (kind, packing)
    assert file.is_plain == (kind == "text" and packing is None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/z.txt", "a/c.txt.gz", ".git/config", "a/.hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    return tmp_path


def test_a_folder_names_the_files_below_it_but_hidden_ones(folder: Path) -> None:
    assert names_several(folder)
    assert [file.path.relative_to(folder).as_posix() for file in find_files(folder)] == [
        "a/c.txt.gz",
        "a/z.txt",
        "b.txt",
    ]


def test_a_pattern_names_what_it_matches(folder: Path) -> None:
    pattern = folder / "*" / "[a-z]*.txt"
    assert names_several(pattern)
    assert "a/z.txt" in [file.path.relative_to(folder).as_posix() for file in find_files(pattern)]
    (folder / "really[1].txt").write_text("x")
    assert not names_several(folder / "really[1].txt")


def test_nothing_found_is_told(folder: Path, tmp_path: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="is a folder without files; set data"):
        find_files(folder / "empty")
    with pytest.raises(DataError, match=r"\*\.md matches no files; set data"):
        find_files(folder / "*.md")


def test_text_and_tables_are_not_mixed(folder: Path) -> None:
    (folder / "rows.parquet").write_text("x")
    with pytest.raises(DataError, match=r"mixes text and tables: .*c\.txt\.gz is text, .*rows\.parquet is parquet"):
        find_files(folder)


def test_a_name_that_would_break_a_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a\nerror: b.txt").write_text("x")
    with pytest.raises(DataError, match=r"has a file with a control character in its name, '.*a\\nerror: b\.txt'"):
        find_files(tmp_path)
