"""Every source of text ends in good files, or in a sentence that says what to do."""

import hashlib
import io
import os
import socket
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpt.config import DataConfig
from gpt.corpora import locating
from gpt.corpora.download import Download
from gpt.corpora.locating import ARCHIVES, SHAKESPEARE, corpus_files
from gpt.system.environment import Settings
from gpt.system.errors import DataError
from gpt.system.progress import silent

OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
CONTENT = b"To be, or not to be.\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Mock(side_effect=AssertionError("a socket was opened")))


def locate(settings: Settings = OFFLINE, **keys: Any) -> Path:
    (file,) = corpus_files(DataConfig.model_validate(keys), settings, silent)
    return file


def refusal(settings: Settings = OFFLINE, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        locate(settings, **keys)
    return str(caught.value)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(CONTENT)
    return path


def test_a_file_of_ones_own_is_taken_where_it_is(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate(source="file", path=str(text), dir=f"{text}/none") == text
    monkeypatch.setenv("HOME", str(text.parent))
    assert locate(source="file", path="~/text.txt") == text


@pytest.mark.parametrize(("size", "said"), [(0, "0 bytes"), (1 << 40, "1,099,511,627,776 bytes")])
def test_an_empty_or_absurdly_large_file_is_refused(size: int, said: str, text: Path) -> None:
    with text.open("wb") as file:
        file.truncate(size)
    assert f"{text} has {said}; a corpus has 1 to " in refusal(source="file", path=str(text))


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


def test_shakespeare_is_taken_from_the_folder_in_the_environment_before_data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Download(SHAKESPEARE.urls, SHAKESPEARE.filename, SHA256, 1000)  # the real one is not here to test with
    monkeypatch.setattr(locating, "SHAKESPEARE", small)
    for folder in ("common", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / small.filename).write_bytes(CONTENT)
    for common, expected in ((tmp_path / "common", "common"), (None, "data")):
        settings = Settings(data_dir=common, cache_dir=tmp_path, offline=True)
        assert locate(settings, dir=str(tmp_path / "data")) == tmp_path / expected / small.filename


def test_text8_is_unpacked_once_from_its_zip_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../text8", CONTENT)  # a name that must never become a path
    packed, real = buffer.getvalue(), ARCHIVES["text8"][0]
    download = Download(real.urls, real.filename, hashlib.sha256(packed).hexdigest(), real.size)
    monkeypatch.setitem(locating.ARCHIVES, "text8", (download, hashlib.md5(CONTENT).hexdigest()))
    data, common = tmp_path / "data", tmp_path / "common"
    common.mkdir()
    settings = Settings(data_dir=common, cache_dir=tmp_path, offline=True)
    keys = {"source": "text8", "dir": str(data)}
    assert "put text8.zip (sha256" in refusal(settings, **keys)
    (common / "text8.zip").write_bytes(packed)
    assert locate(settings, **keys) == data / "text8"
    assert (data / "text8").read_bytes() == CONTENT
    assert [path.name for path in data.iterdir()] == ["text8"]
    (common / "text8.zip").write_bytes(packed + b"!")
    assert locate(settings, **keys) == data / "text8"
    (data / "text8").write_bytes(CONTENT + b"!")
    assert f"{data / 'text8'} has md5 " in refusal(settings, **keys)
    (data / "text8").unlink()
    assert "got sha256" in refusal(settings, **keys)
