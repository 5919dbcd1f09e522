"""Read files that may be compressed as streams of bytes, a piece at a time however far they expand."""

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, cast

from gpt import invocation
from gpt.corpora.source_files import SourceFile
from gpt.errors import DataError, first_line

WINDOW = 1 << 27
"""Bytes of history that a zstd stream may ask for: 128 MB, as the command `zstd` allows."""
MAX_LIST = 1 << 20
"""Bytes of a zip file that may say what is in it: of one file, at most 200 KB."""
CHUNK = 2048
"""Bytes that zstd is given at a time: four make at most a block of 128 KB (RFC 8878), so this makes at most 64 MB."""


def require_package(name: str, path: Path) -> None:
    """Raise DataError if a package that reads a file is not installed."""
    if find_spec(name) is None:
        raise DataError(f"{path} needs the {name} package: {invocation.extra('corpora')}")


@contextmanager
def open_unpacked(file: SourceFile, raw: BinaryIO) -> Iterator[BinaryIO]:
    """Open the content of a file, which is `raw` as it is on disk, for reading.

    Raises:
        DataError: the file is damaged, cut short or not of that kind, also where it is read inside the context; or
            the package that unpacks it is not installed.
    """
    try:
        match file.packing:
            case None:
                yield raw
            case "gzip":
                with gzip.open(raw, "rb") as stream:
                    yield cast(BinaryIO, stream)
            case "zip":
                listed = cast(BinaryIO, _ShortReads(raw))
                with zipfile.ZipFile(listed) as archive, archive.open(_only_member(archive, file.path)) as stream:
                    yield cast(BinaryIO, stream)
            case "zstd":
                with _open_zstd(file.path, raw) as stream:
                    yield stream
    except _Truncated:
        raise DataError(f"{file.path} cannot be unpacked: it ends too early; it is damaged or incomplete") from None
    except UnicodeDecodeError:
        raise DataError(f"{file.path} cannot be unpacked: a name in it is not UTF-8; it is damaged") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{file.path} cannot be unpacked: {first_line(error)}; it is damaged or incomplete") from None


class _Truncated(Exception):
    """A stream ended inside a frame."""


def _only_member(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    """Return the one file of an archive; it is read in place, so that its name is never a path."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) != 1:
        raise DataError(f"{path} holds {len(members)} files; unpack it, and set data.path to the folder")
    if members[0].flag_bits & 1:
        raise DataError(f"{path} is encrypted; unpack it first")
    if members[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile unpacks others at once
        raise DataError(f"{path} is not compressed by deflate, as zip files mostly are; unpack it first")
    return members[0]


class _ShortReads:
    """A file that gives no more at a time than a list of one file or a piece of it needs; zipfile believes sizes."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.seek, self.tell, self.seekable = raw.seek, raw.tell, raw.seekable

    def read(self, count: int = -1) -> bytes:
        data = self._raw.read(MAX_LIST + 1 if count < 0 else min(count, MAX_LIST + 1))
        if len(data) > MAX_LIST:
            raise zipfile.BadZipFile(f"the list of what is in it has more than {MAX_LIST:,} bytes")
        return data


class _ZstdStream(io.RawIOBase):
    """The content of a zstd file. The package's own reader takes a file that is cut short for a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw, self._decompressor = raw, zstandard.ZstdDecompressor(max_window_size=WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._ready, self._begun = memoryview(b""), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._decompressor.decompressobj(), False
            data = data or self._raw.read(CHUNK)
            if not data:
                if self._begun:
                    raise _Truncated
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


@contextmanager
def _open_zstd(path: Path, raw: BinaryIO) -> Iterator[BinaryIO]:
    require_package("zstandard", path)
    import zstandard

    try:
        yield cast(BinaryIO, io.BufferedReader(_ZstdStream(raw), 1 << 17))
    except zstandard.ZstdError as error:
        raise DataError(f"{path} cannot be unpacked: {first_line(error)}; it is damaged or incomplete") from None
