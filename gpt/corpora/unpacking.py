"""Read files that may be compressed as streams of bytes, a piece at a time however far they expand."""

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, cast

from gpt.corpora.source_files import SourceFile
from gpt.errors import DataError, first_line

MAX_LIST = 1 << 20
"""Bytes of a zip file that may say what is in it: of one file, at most 200 KB."""


def require_pyarrow(path: Path) -> None:
    """Raise DataError if pyarrow, which reads a file, is not installed."""
    if find_spec("pyarrow") is None:
        raise DataError(f"{path} needs the pyarrow package: pip install 'glassgpt[corpora]'")


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
                require_pyarrow(file.path)
                from pyarrow import CompressedInputStream

                with CompressedInputStream(raw, "zstd") as stream:  # of a window of at most 128 MB
                    yield cast(BinaryIO, io.BufferedReader(stream, 1 << 17))
    except UnicodeDecodeError:
        raise DataError(f"{file.path} cannot be unpacked: a name in it is not UTF-8; it is damaged") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        if getattr(error, "errno", None) is not None:  # of the disk
            raise
        raise DataError(f"{file.path} cannot be unpacked: {first_line(error)}; it is damaged or incomplete") from None


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
