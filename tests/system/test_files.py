"""Whatever happens while a file is written, the old content or the new one is there."""

import errno
import hashlib
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpt.system.files import (
    open_file,
    parse_json,
    read_end,
    read_file,
    sha256_of,
    sync_file,
    sync_folder,
    write_atomic,
)
from programs import full_disk


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that is there before, alone in its folder."""
    path = tmp_path / "file.json"
    path.write_bytes(b"old")
    return path


@pytest.mark.parametrize("content", [b"", b"new", bytes(range(256)) * 10_000])
def test_new_content_replaces_the_old_and_leaves_nothing_else(content: bytes, old: Path) -> None:
    with old.open("rb") as file:
        assert file.read(1) == b"o"
        write_atomic(old, content)
        # Whoever has the old file open reads that one to its end.
        assert file.read() == b"ld"
    sync_file(old)
    assert old.read_bytes() == content
    assert sha256_of(old) == hashlib.sha256(content).hexdigest()
    assert old.stat().st_mode & 0o777 == 0o644
    assert list(old.parent.iterdir()) == [old]
    link = old.with_name("link")
    link.symlink_to(old)
    write_atomic(link, b"of the link")
    assert (old.read_bytes(), link.read_bytes(), link.is_symlink()) == (
        content,
        b"of the link",
        False,
    )


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: None, FileNotFoundError),
        (lambda path: (path.parent.mkdir(), path.mkdir()), IsADirectoryError),
        (lambda path: (path.parent.mkdir(), os.mkfifo(path)), OSError),
    ],
    ids=["missing folder", "folder", "pipe"],
)
def test_what_cannot_be_replaced_stays_as_it_is(
    make: Any, error: type[OSError], tmp_path: Path
) -> None:
    place = tmp_path / "folder" / "place"
    make(place)
    before = [(path, path.stat().st_mode) for path in tmp_path.rglob("*")]
    with pytest.raises(error):
        write_atomic(place, b"new")
    assert [(path, path.stat().st_mode) for path in tmp_path.rglob("*")] == before
    for flush in (sync_file, sync_folder):
        with pytest.raises(FileNotFoundError):
            flush(tmp_path / "none")


def test_a_disk_that_fills_up_halfway_leaves_the_old_content(old: Path) -> None:
    with pytest.raises(OSError, match="too large"), full_disk(1000):
        write_atomic(old, b"n" * 100_000)
    assert (old.read_bytes(), list(old.parent.iterdir())) == (b"old", [old])


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr
)
def test_failure_or_interrupt_at_any_step_leaves_the_old_content(
    step: str, error: BaseException, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, step, Mock(side_effect=error))
    with pytest.raises(type(error)):
        write_atomic(old, b"new")
    monkeypatch.undo()
    assert (old.read_bytes(), list(old.parent.iterdir())) == (b"old", [old])


def test_the_content_is_on_disk_before_it_gets_its_name(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the name must not stand for an empty file."""
    steps = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append("fsync"))
    monkeypatch.setattr(
        os, "replace", lambda source, target: (steps.append("replace"), replace(source, target))
    )
    write_atomic(old, b"new")
    assert steps == ["fsync", "replace", "fsync"]
    assert old.read_bytes() == b"new"


def test_a_pipe_a_device_or_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "file", 5) == b"12345"
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 3 << 30)
    for path, reason in (
        (tmp_path / "file", "more than 4"),
        (tmp_path / "sparse", "more than 4"),
        (tmp_path / "pipe", "not a"),
        (Path("/dev/zero"), "not a"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(OSError, match=reason):
            read_file(path, 4)
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for function in (open_file, sha256_of, lambda path: read_end(path, 4)):
            with pytest.raises(OSError, match="not a regular file"):
                function(path)


def test_tail_reads_only_the_end_of_a_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert (read_end(path, 3), read_end(path, 9), read_end(path, 0)) == (b"345", b"12345", b"")
    # a file that says it has nothing, and has no bound
    assert read_file(Path("/proc/self/maps"), 4) == b""


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    write_atomic(tmp_path / "new", b"1")
    old = tmp_path / ".new.abcdefgh.tmp"
    young = tmp_path / ".new.bcdefghi.tmp"
    for folder in (old, young):
        folder.mkdir()
        (folder / "part").write_bytes(b"1")
    other = tmp_path / ".other.abcdefgh.tmp"
    other.mkdir()
    two_days_ago = time.time() - 2 * 24 * 3600
    for path in (old, old / "part", young, other):
        os.utime(path, (two_days_ago, two_days_ago))
    write_atomic(tmp_path / "new", b"2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, other.name, "new"]


@pytest.mark.parametrize("content", [b"[" * 100_000, '{"a":' * 100_000, b"{", b"\xff", ""])
def test_what_is_no_json_is_a_value_error(content: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting|decode"):
        parse_json(content)
    assert parse_json(b'{"a": [1.5]}') == {"a": [1.5]}
