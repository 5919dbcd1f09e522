"""Corpora that somebody made to do harm: tables of absurd shapes, names that lead elsewhere."""

import io
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
from pyarrow import parquet

from drills.hostile_files import Prepare, linked, pipe, write

TEXT = b"".join(b"%d keys and doors.\n" % number for number in range(200))
GOOD, REFUSED = 0, 2
Hostile = tuple[str, Prepare, int]
"""What it is, what makes it as the folder `evil`, and the exit code of its preparation."""


def corpora() -> Iterator[Hostile]:
    for kind in (parquets, names):
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


def table(columns: dict[str, object], **options: object) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out, **options)
    return out.getvalue()


def parquets() -> Iterator[Hostile]:
    good = table({"text": ["keys and doors"] * 9})
    yield "a zip file", file("a.zip", b"PK\3\4" + bytes(30)), REFUSED
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
    yield "folder, text and tables", inside(write("a.parquet", b"")), REFUSED
