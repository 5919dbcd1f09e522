"""Files that somebody made to do harm, put into a checkpoint, a run folder or a model of another program."""

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import torch
import yaml
from pyarrow import parquet
from safetensors.torch import load_file, save_file

Prepare = Callable[[Path], object]
"""Puts a file into the folder that it is given."""
MARK = "pwned"
DEEP = b"[" * 200_000
HUGE = 150 << 20


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.command = f"touch '{folder.resolve() / MARK}'"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (self.command,)


class Allocation(Payload):
    """Takes 3 GB where it is unpickled, which torch allows."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int]]:
        return bytearray, (3_000_000_000,)


def write(name: str, content: bytes = b"", sparse: int = 0) -> Prepare:
    """Return a function that replaces a file; `sparse` makes it so long, without using the disk."""

    def prepare(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        if sparse:
            os.truncate(path, sparse)

    return prepare


def pickled(name: str, kind: type[Payload], by_torch: bool, beside_checkpoint: bool = False) -> Prepare:
    """Return a function that writes a pickle with a payload, beside an empty checkpoint if that is read first."""

    def prepare(folder: Path) -> None:
        if beside_checkpoint:
            torch.save({"model_args": {}, "model": {}}, folder / "ckpt.pt")
        value = {key: kind(folder) for key in ("model", "itos", "optimizer")}
        if by_torch:
            torch.save(value, folder / name)
        else:
            (folder / name).write_bytes(pickle.dumps(value))

    return prepare


def linked(name: str, target: str) -> Prepare:
    return lambda folder: [(folder / name).unlink(missing_ok=True), (folder / name).symlink_to(target)]


def pipe(name: str) -> Prepare:
    return lambda folder: [(folder / name).unlink(missing_ok=True), os.mkfifo(folder / name)]


def moved(name: str) -> Prepare:
    """Return a function that puts a folder of a run elsewhere, and a link in its place."""

    def prepare(folder: Path) -> None:
        outside = folder.parents[1] / "outside" / name
        shutil.copytree(folder / name, outside, ignore=shutil.ignore_patterns("step-000006*"))
        shutil.rmtree(folder / name)
        (folder / name).symlink_to(outside)

    return prepare


def json_with(name: str, **changes: Any) -> Prepare:
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_bytes()) | changes))


def yaml_with(name: str, **changes: dict[str, Any]) -> Prepare:
    """Return a function that changes options of a configuration, by section."""

    def prepare(folder: Path) -> None:
        sections = yaml.safe_load((folder / name).read_text())
        for section, options in changes.items():
            sections[section] |= options
        (folder / name).write_text(yaml.safe_dump(sections))

    return prepare


def with_tensor(name: str, added: str) -> Prepare:
    """Return a function that adds a tensor to those of a file."""
    return lambda folder: save_file({**load_file(folder / name), added: torch.zeros(2)}, folder / name)


def huge_tables(folder: Path) -> None:
    """Let a model have rotary positions, whose tables no file holds, and 10^8 of them."""
    yaml_with("config.yaml", model={"block_size": 10**8, "position": "rope"})(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["wpe.weight"]
    save_file(weights, folder / "model.safetensors")


def tensor_files(name: str) -> Iterator[tuple[str, Prepare]]:

    def header(content: bytes, length: int | None = None) -> Prepare:
        return write(name, struct.pack("<Q", len(content) if length is None else length) + content)

    entry = {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 2**64 - 1]}
    many = {str(number): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(20_000)}
    yield "header of 2^63 bytes", header(b"{}", 2**63)
    yield "header of 99 MB", header(b"{" + b" " * 99_000_000 + b"}")
    yield "header nested deep", header(DEEP)
    yield "tensor of 2^64 bytes", header(json.dumps({"lm_head.weight": entry}).encode())
    yield "20,000 tensors", header(json.dumps(many).encode())
    yield "file of 300 GB", write(name, sparse=300 << 30)
    yield "link to /dev/zero", linked(name, "/dev/zero")
    yield "pipe", pipe(name)


def yaml_files(folder_of_mark: Path) -> Iterator[tuple[str, bytes]]:
    command = f"touch {folder_of_mark.resolve() / MARK}"
    for tag in ("python/object/apply:os.system", "python/object/new:os.system"):
        yield tag, f"run: !!{tag} ['{command}']\n".encode()
    yield "python/name", b"run: {name: !!python/name:os.system }\n"
    levels = [f"k{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 30)]
    yield "aliases", ("k0: &a0 [lol]\n" + "\n".join(levels)).encode()
    yield "nested deep", b"run: " + DEEP
    yield "150 MB", b"run: {name: " + b"a" * HUGE + b"}\n"


def tokenizer_files(name: str) -> Iterator[tuple[str, Prepare]]:
    yield "tokenizer nested deep", write(name, b'{"model": ' + DEEP)
    yield "tokenizer of 150 MB", write(name, b'{"model": "' + b"a" * HUGE + b'"}')
    yield "tokenizer of 300 GB", write(name, sparse=300 << 30)
    vocabulary = {"type": "BPE", "vocab": {"a": 10**12}, "merges": []}
    yield "token 10^12", write(name, json.dumps({"model": vocabulary, "decoder": {"type": "ByteLevel"}}).encode())
    yield "tokenizer is a pipe", pipe(name)


def zip_bomb(name: str) -> Prepare:
    """Return a function that writes a checkpoint of torch, of which one tensor expands to 1 GB."""

    def prepare(folder: Path) -> None:
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({}))
            with archive.open("archive/data/0", "w") as member:
                for _ in range(64):
                    member.write(b"\0" * (16 << 20))
            archive.writestr("archive/version", "3\n")

    return prepare


def seal(checkpoint: Path) -> None:
    """Give every file of a checkpoint the hash that its manifest says, where it can be read at all."""
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    for name, entry in manifest["files"].items():
        path = checkpoint / name
        if path.is_file():
            entry["size"] = path.stat().st_size
            if entry["size"] < 1 << 30:
                entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


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
