"""Which files a path names, in which order, and what is in them."""

import os
from pathlib import Path
from typing import Any

import pytest

from gpt.corpora.source_files import classify, find_files, names_several
from gpt.errors import DataError


@pytest.mark.parametrize(
    ("name", "kind", "packing"),
    [("a.TXT.GZ", "text", "gzip"), ("a.b/c.py", "text", None), ("a.ndjson.zst", "jsonl", "zstd")],
)
def test_suffixes_say_what_a_file_is(name: str, kind: str, packing: str | None) -> None:
    file = classify(Path(name))
    assert (file.kind, file.packing, file.is_plain) == (kind, packing, packing is None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/z.txt", "a/c.txt.gz", ".git/config", "a/.hidden.txt", "a/__pycache__/z.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


def test_a_folder_names_the_files_below_it_but_hidden_and_generated_ones(folder: Path) -> None:
    assert names_several(folder)
    lines: list[str] = []
    assert [file.path.relative_to(folder).as_posix() for file in find_files(folder, lines.append)] == [
        "a/c.txt.gz",
        "a/z.txt",
        "b.txt",
    ]
    assert lines == [f"{folder}: left out __pycache__ (1), names that begin with a dot (2)"]


def test_links_are_followed_as_a_pattern_does(tmp_path: Path) -> None:
    for name in ("elsewhere/linked.txt", "corpus/own.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    (tmp_path / "corpus/more").symlink_to(tmp_path / "elsewhere")
    by_folder = find_files(tmp_path / "corpus")
    assert [file.path.name for file in by_folder] == ["linked.txt", "own.txt"]
    assert by_folder == find_files(tmp_path / "corpus" / "**" / "*.txt")


@pytest.mark.parametrize(
    ("make", "named", "message"),
    [
        (lambda folder: (folder / "a/link").symlink_to("nowhere"), "a", r"link is a link to nothing; remove it"),
        (lambda folder: (folder / "a/link").symlink_to(".."), "a", r"link is a link to .*, a folder that holds .*a;"),
        (lambda folder: (folder / "empty").mkdir(), "empty", "is a folder without files; set data"),
        (lambda folder: None, "*.md", r"\*\.md matches no files; set data"),
        (
            lambda folder: (folder / "rows.parquet").touch(),
            "",
            r"mixes text and tables: .*c\.txt\.gz is text, .*parquet",
        ),
        (
            lambda folder: (folder / "a\nb.txt").touch(),
            "",
            r"a file with a control character in its name, '.*a\\nb\.txt'",
        ),
    ],
    ids=["link to nothing", "link to a parent", "empty", "no match", "text and tables", "control character"],
)
def test_files_that_cannot_be_read_are_refused(make: Any, named: str, message: str, folder: Path) -> None:
    make(folder)
    with pytest.raises(DataError, match=message):
        find_files(folder / named)


def test_a_folder_that_cannot_be_listed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot list .*: Permission denied"):
        find_files(folder)


def test_a_pattern_names_what_it_matches(folder: Path) -> None:
    pattern = folder / "*" / "[a-z]*.txt"
    assert names_several(pattern)
    assert "a/z.txt" in [file.path.relative_to(folder).as_posix() for file in find_files(pattern)]
    (folder / "really[1].txt").write_text("x")
    assert not names_several(folder / "really[1].txt")
