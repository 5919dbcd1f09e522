"""Every source of text ends in one good file, or in a sentence that says what to do."""

import hashlib
import io
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpt.config import DataConfig
from gpt.corpora import locating
from gpt.corpora.corpus_text import CorpusText
from gpt.corpora.download import Download
from gpt.corpora.locating import ARCHIVES, SHAKESPEARE, Archive, corpus_files, locate_corpus
from gpt.environment import Settings
from gpt.errors import DataError

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
CONTENT = b"To be, or not to be.\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Mock(side_effect=AssertionError("a socket was opened")))


def ignore(_: str) -> None:
    """Takes the lines for the user."""


def locate(settings: Settings = OFFLINE, report: Callable[[str], None] = ignore, **keys: Any) -> Path:
    return locate_corpus(DataConfig.model_validate(keys), settings, report)


def refusal(settings: Settings = OFFLINE, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        locate(settings, **keys)
    return str(caught.value)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(CONTENT)
    return path


def test_archives_are_pinned_by_hash_and_come_by_https() -> None:
    for archive in ARCHIVES.values():
        assert len(archive.download.sha256) == 64
        assert all(url.startswith("https://") for url in archive.download.urls)


def test_a_file_of_ones_own_is_taken_where_it_is(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate(source="file", path=str(text)) == text
    assert locate(source="file", path=str(text), sha256=SHA256, max_bytes=len(CONTENT), dir=f"{text}/none") == text
    monkeypatch.setenv("HOME", str(text.parent))
    assert locate(source="file", path="~/text.txt") == text


@pytest.mark.parametrize(
    ("content", "keys", "problem"),
    [
        (CONTENT, {"sha256": "0" * 64}, f" has sha256 {SHA256}, data.sha256 is {'0' * 64}"),
        (CONTENT, {"max_bytes": 20}, " has 21 bytes, more than data.max_bytes 20; raise data.max_bytes to use it"),
        (b"", {}, " is empty"),
        (None, {}, ": no such file; set data.path to a text file"),
        (CONTENT, {"path": os.devnull}, ": not a regular file; set data.path to a text file"),
    ],
    ids=["another hash", "too large", "empty", "missing", "device"],
)
def test_a_file_that_cannot_be_used_is_told(
    content: bytes | None, keys: dict[str, Any], problem: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.unlink() if content is None else text.write_bytes(content)
    path = keys.get("path", str(text))
    assert refusal(source="file", **{"path": path, **keys}) == path + problem
    if "sha256" in keys:
        monkeypatch.setattr(locating, "sha256_of", Mock(side_effect=PermissionError(13, "Permission denied")))
        assert refusal(source="file", path=path, **keys) == f"cannot read {path}: Permission denied"


def test_pydocs_is_pythons_documentation_written_once(tmp_path: Path) -> None:
    path = locate(source="pydocs", dir=str(tmp_path / "new" / "data"))
    text, written = path.read_text(encoding="utf-8"), path.stat()
    assert path.parent == tmp_path / "new" / "data"
    assert len(text) > 100_000
    assert 'The "if" statement' in text
    assert locate(source="pydocs", dir=str(path.parent)) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)


def test_a_data_folder_that_cannot_be_written_is_told_and_has_no_part(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, reason in ((text, "File exists"), (text / "below", "Not a directory")):
        said = refusal(source="pydocs", dir=str(folder))
        assert said.startswith(f"cannot write {folder / 'pydocs-'}")
        assert said.endswith(f": {reason}; set data.dir to another folder")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert "No space left on device; set data.dir" in refusal(source="pydocs", dir=str(text.parent))
    assert list(text.parent.iterdir()) == [text]


def test_options_that_only_other_files_would_read_are_told(text: Path) -> None:
    said: list[str] = []
    keys = {"source": "file", "column": "body", "separator": ""}
    corpus_files(DataConfig.model_validate({**keys, "path": str(text)}), OFFLINE, said.append)
    assert said == [f"data.{each} has no effect: {text} is text" for each in ("column='body'", "separator=''")]
    said.clear()
    (text.parent / "more.txt").write_bytes(CONTENT)
    corpus_files(DataConfig.model_validate({**keys, "path": str(text.parent)}), OFFLINE, said.append)
    assert said == [f"data.column='body' has no effect: {text.parent / 'more.txt'} and the others are text"]


def test_shakespeare_is_taken_from_the_folder_in_the_environment_before_data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Download(SHAKESPEARE.urls, SHAKESPEARE.filename, SHA256, 1000)  # the real one is not here to test with
    monkeypatch.setattr(locating, "SHAKESPEARE", small)
    for folder in ("shared", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / small.filename).write_bytes(CONTENT)
    for shared, expected in ((tmp_path / "shared", "shared"), (None, "data")):
        settings = Settings(data_dir=shared, cache_dir=tmp_path, offline=True)
        assert locate(settings, dir=str(tmp_path / "data")) == tmp_path / expected / small.filename


def test_without_the_right_shakespeare_it_is_said_offline_what_to_put_where(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "typo", cache_dir=tmp_path, offline=True)
    said = refusal(settings, source="shakespeare", dir=str(tmp_path / "data"))
    assert f"put tinyshakespeare.txt (sha256 {SHAKESPEARE.sha256}" in said
    assert str(tmp_path / "typo" / "tinyshakespeare.txt") in said
    assert list(tmp_path.iterdir()) == []
    fake = tmp_path / SHAKESPEARE.filename
    fake.write_bytes(CONTENT)
    said = refusal(Settings(data_dir=tmp_path, cache_dir=tmp_path, offline=True), source="shakespeare")
    assert f"{fake} got sha256 {SHA256[:12]}" in said
    assert "data.source=file" in said
    assert fake.read_bytes() == CONTENT


def test_a_download_is_kept_under_a_name_of_its_address(tmp_path: Path) -> None:
    address = "https://example.org/../../etc/passwd?a=b"
    keys = {"source": "url", "url": address, "dir": str(tmp_path)}
    path = tmp_path / f"download-{hashlib.sha256(address.encode()).hexdigest()[:16]}.txt"
    assert str(path) in refusal(**keys)
    path.write_bytes(CONTENT)
    assert locate(**keys) == path
    assert locate(sha256=SHA256, **keys) == path
    assert "got sha256" in refusal(sha256="0" * 64, **keys)
    assert "more than data.max_bytes" in refusal(max_bytes=3, **keys)


def test_text8_is_read_from_its_zip_or_unpacked_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../text8", CONTENT)  # a name that must never become a path
    packed, real = buffer.getvalue(), ARCHIVES["text8"].download
    download = Download(real.urls, real.filename, hashlib.sha256(packed).hexdigest(), real.max_bytes)
    monkeypatch.setitem(locating.ARCHIVES, "text8", Archive(download, hashlib.md5(CONTENT).hexdigest()))
    settings = Settings(data_dir=tmp_path, cache_dir=tmp_path, offline=True)
    assert "put text8.zip (sha256" in refusal(settings, source="text8")
    (tmp_path / "text8.zip").write_bytes(packed)
    config = DataConfig(source="text8", dir=str(tmp_path))
    files = corpus_files(config, settings, ignore)
    assert [(file.path.name, file.kind, file.packing) for file in files] == [("text8.zip", "text", "zip")]
    assert "".join(CorpusText(files, config).pieces()) == CONTENT.decode()
    assert [path.name for path in tmp_path.iterdir()] == ["text8.zip"]
    (tmp_path / "text8").write_bytes(CONTENT)
    assert locate(settings, source="text8") == tmp_path / "text8"
    (tmp_path / "text8").write_bytes(CONTENT + b"!")
    assert f"{tmp_path / 'text8'} has md5 " in refusal(settings, source="text8")
    (tmp_path / "text8").unlink()
    (tmp_path / "text8.zip").write_bytes(packed + b"!")
    assert "got sha256" in refusal(settings, source="text8")
