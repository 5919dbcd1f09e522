"""Corpora that somebody made to do harm: archives that expand, tables of absurd shapes, names that lead elsewhere."""

import base64
import gzip
import io
import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
from pyarrow import parquet

from drills.hostile_files import Prepare, linked, pipe, write

TEXT = b"".join(b"%d keys and doors.\n" % number for number in range(200))
PIECE = b"a b\n" * (1 << 18)
GOOD, REFUSED = 0, 2
MAX_TEXT = 50_000_000
"""`data.max_bytes` of an attack."""
BZIP2 = b"c-nJ{%CIzaj8qGb<l}sFpE17Af#CoH1BU{GL4&WG(*o6%Tn*Dl<wxa5<p;04c#*3`zyz1J&Km$BjwS#"
"""What bzip2 makes of 1.4 GB of zeros, compressed again."""
Hostile = tuple[str, Prepare, int]
"""What it is, what makes it as the folder `evil`, and the exit code of its preparation."""


def corpora() -> Iterator[Hostile]:
    for kind in (zips, streams, json_lines, parquets, names):
        yield from kind()


def file(name: str, content: bytes | Callable[[], bytes]) -> Prepare:
    """Return a function that makes the folder `evil` with one file."""

    def prepare(folder: Path) -> None:
        (folder / "evil").mkdir()
        write(name, content if isinstance(content, bytes) else content())(folder / "evil")

    return prepare


def inside(prepare: Prepare) -> Prepare:
    """Return a function that makes the folder `evil`, and something in it beside a good file."""
    return lambda folder: [file("good.txt", TEXT)(folder), prepare(folder / "evil")]


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for member, content in members:
            archive.writestr(member, content, method)
    return packed.getvalue()


def zip_of(compressed: bytes, size: int, method: int) -> bytes:
    """Return a zip file with one file that somebody else has compressed."""
    name = b"a.txt"
    fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0x21, 0, len(compressed), size, len(name), 0)
    local = b"PK\3\4" + fields + name + compressed
    central = b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    return local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


def zips() -> Iterator[Hostile]:
    link = zipfile.ZipInfo("link.txt")
    link.external_attr = 0o120777 << 16
    good, flags = zipped(("é.txt", TEXT)), struct.pack("<HH", 0x800, 8)
    for evil in ("../../outside/secret", "/tmp/evil.txt", "C:\\evil.txt", "a" * 60_000, "\x1b[2J\n.txt"):
        yield f"zip, entry {evil[:30]!r}", file("a.zip", zipped((evil, TEXT))), GOOD
    refused: dict[str, bytes | Callable[[], bytes]] = {
        "two entries": zipped(("a", TEXT), ("b", TEXT)),
        "one in another": zipped(("a.zip", zipped(("a.txt", TEXT)))),
        "deflate to 1 GB": lambda: zipped(("a.txt", PIECE * 1024)),
        "60,000 entries": lambda: zipped(*((f"{number}", b"") for number in range(60_000))),
        "bzip2 to 1.4 GB": lambda: zip_of(zlib.decompress(base64.b85decode(BZIP2)), 2**32 - 1, 12),
        "lzma to 1 GB": lambda: zipped(("a.txt", PIECE * 1024), method=zipfile.ZIP_LZMA),
        "lzma with a dictionary of 4 GB": zip_of(_lzma_of(b"\xff" * 4), 99, 14),
        "name is not UTF-8": good.replace("é".encode(), b"\xc3\xff"),
        "encrypted": good.replace(flags, struct.pack("<HH", 0x801, 8)),
        "encrypted in strong ways": good.replace(flags, b"\x41\0\x08\0"),
    }
    yield "zip, entry is a link", file("a.zip", zipped((link, b"/etc/passwd\n" * 30))), GOOD
    for what, content in refused.items():
        yield f"zip, {what}", file("a.zip", content), REFUSED
    for offset, code in {0: REFUSED, 4: GOOD, 8: GOOD, 10: GOOD, 12: REFUSED, 16: REFUSED, 20: GOOD}.items():
        end = bytearray(good)  # disks, counts of entries and the comment's length say nothing that is read
        end[len(end) - 22 + offset : len(end) - 20 + offset] = b"\xff\xff"
        yield f"zip, end record with {offset} set to the most", file("a.zip", bytes(end)), code


def _lzma_of(dictionary: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA1}]
    return b"\x09\x04\x05\x00\x5d" + dictionary + lzma.compress(TEXT, lzma.FORMAT_RAW, filters=filters)


def streams() -> Iterator[Hostile]:
    whole = gzip.compress(TEXT, mtime=0)
    yield "gzip to 1 GB", file("a.txt.gz", lambda: gzip.compress(PIECE * 1024, 9)), REFUSED
    yield "gzip in a gzip", file("a.txt.gz", lambda: gzip.compress(gzip.compress(PIECE * 512))), REFUSED
    yield "gzip, 200,000 empty parts", file("a.txt.gz", gzip.compress(b"") * 200_000 + whole), GOOD
    named = b"\x08" + whole[4:10] + b"a" * (2 << 20) + b"\0"
    yield "gzip, a name of 2 MB", file("a.txt.gz", whole[:3] + named + whole[10:]), GOOD
    yield "gzip of a tar", file("a.tar.gz", gzip.compress(b"../../evil".ljust(512, b"\0") * 20)), REFUSED
    blocks = struct.pack("<I", (131072 << 3) | 2)[:3] + b"a"
    repeated, wide = (b"\x28\xb5\x2f\xfd\x00" + window + blocks for window in (b"\x58", b"\xa8"))
    yield "zstd, a window of 2 GB", file("a.txt.zst", wide + blocks), REFUSED
    yield "zstd to 26 GB of one letter", file("a.txt.zst", repeated + blocks * 200_000), REFUSED
    sized = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**63) + b"\x03\0\0a"
    yield "zstd, says that it has 2^63 bytes", file("a.txt.zst", sized), REFUSED
    yield "zstd, a frame to skip", file("a.txt.zst", b"\x50\x2a\x4d\x18" + struct.pack("<I", 2**32 - 1)), REFUSED
    yield "zstd, of JSON lines to 26 GB", file("a.jsonl.zst", repeated + blocks * 200_000), REFUSED


def json_lines() -> Iterator[Hostile]:
    good = b'{"text": "keys and doors"}\n' * 30

    def row(value: bytes, size: int, closed: bytes = b"") -> Callable[[], bytes]:
        return lambda: gzip.compress(
            good + b'{"text": "a", "x": [' + value * (size // len(value)) + b"1" + closed + b"]}\n", 1
        )

    yield "JSON, a line of 1 GB", file("a.jsonl.gz", lambda: gzip.compress(good + b" " * (1 << 30), 9)), REFUSED
    yield "JSON, 20 million lists in a line", file("a.jsonl.gz", row(b"[],", 60 << 20)), REFUSED
    yield "JSON, 12 million texts in a line", file("a.jsonl.gz", row(b'"ab",', 60 << 20)), REFUSED
    yield "JSON, nested deep", file("a.jsonl", good + b'{"text": ' + b"[" * 10_000_000), REFUSED
    yield "JSON, a number of 10^7 digits", file("a.jsonl.gz", row(b"1", 10**7)), REFUSED
    yield "JSON, a key of 30 MB", file("a.jsonl", b'{"' + b"k" * (30 << 20) + b'": 1}'), REFUSED
    yield "JSON, a key that clears the terminal", file("a.jsonl", b'{"\\u001b[2J\\nerror: all is well": 1}'), REFUSED
    # one character makes Python keep each of the others in four bytes
    wide = lambda: gzip.compress(b'{"text": "' + b"ab " * (20 << 20) + "😀".encode() + b'"}')  # noqa: E731
    yield "JSON, a text of 60 MB", file("a.jsonl.gz", wide), REFUSED
    yield "JSON, NaN, twice the same key", file("a.jsonl", good + b'{"a": NaN, "text": 1, "text": "x"}'), GOOD


def table(columns: dict[str, object], **options: object) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out, **options)
    return out.getvalue()


def parquets() -> Iterator[Hostile]:
    good = table({"text": ["keys and doors"] * 9})
    yield "Parquet, rows of 32 MB that are one", file("a.parquet", _one_long_text), REFUSED
    yield "Parquet, a page of 1.5 GB", file("a.parquet", _large_page), REFUSED
    for length in (2**31 - 1, 2**32 - 1, 0):
        footer = good[:-8] + struct.pack("<I", length) + b"PAR1"
        yield f"Parquet, a footer of {length:,} bytes", file("a.parquet", footer), REFUSED
    times = pyarrow.array([2**62], pyarrow.timestamp("us"))
    yield "Parquet, a time of 10^11 years", file("a.parquet", table({"text": times})), REFUSED
    yield "Parquet, lists", file("a.parquet", table({"text": [[["x"]]] * 9})), REFUSED
    yield "Parquet, bytes", file("a.parquet", table({"text": [b"\xff"] * 9})), REFUSED
    evil = {f"\x1b[2J\nerror: {number}" * 99: [1] for number in range(2000)}
    yield "Parquet, 2,000 columns that clear the terminal", file("a.parquet", table(evil)), REFUSED
    many = {"text": ["a b"] * 20_000, **{f"c{number}": [0] * 20_000 for number in range(2)}}
    yield "Parquet, 20,000 row groups", file("a.parquet", lambda: table(many, row_group_size=1)), GOOD


def _one_long_text() -> bytes:
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 640, pyarrow.int32()), ["ab" * (16 << 20)])
    # without Arrow's own schema, which would say that the column has a dictionary
    return table({"text": values}, compression="snappy", dictionary_pagesize_limit=1 << 30, store_schema=False)


def _large_page() -> bytes:
    text = pyarrow.array(["ab" * 50_000_000] * 15, pyarrow.large_string())
    return table({"text": text}, compression="snappy", use_dictionary=False, data_page_size=1 << 31)


def names() -> Iterator[Hostile]:
    """Yield folders with names and files that are not what they seem."""
    for name in (b"caf\xe9.txt", b"-rf.txt", b"$(touch pwned).txt", "‮txt.exe".encode(), b"a" * 250 + b".txt"):
        yield f"file {os.fsdecode(name[:20])!r}", inside(write(os.fsdecode(name), TEXT)), GOOD
    for name in (b"a\nerror: all is well.txt", b"\x1b[2Jx.txt"):
        yield f"file {os.fsdecode(name[:20])!r}", inside(write(os.fsdecode(name), TEXT)), REFUSED
    yield "folder, a pipe", inside(pipe("a.txt")), REFUSED
    yield "folder, /dev/zero", inside(linked("a.txt", "/dev/zero")), REFUSED
    yield "folder, a link in a circle", inside(linked("a", "../evil")), GOOD
    yield "folder, a link to nothing", inside(linked("a.txt", "nothing")), REFUSED
    yield "folder, 300 GB of nothing", inside(write("a.txt", sparse=300 << 30)), REFUSED
    yield "folder, text and tables", inside(write("a.jsonl", json.dumps({"text": "x"}).encode())), REFUSED
