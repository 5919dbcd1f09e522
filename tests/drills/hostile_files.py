"""Files that somebody made to do harm, put into a checkpoint, a run folder or a model of another program."""

import hashlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Prepare = Callable[[Path], None]
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


class Evaluated(Payload):
    """Runs Python where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return eval, (f"__import__('os').system({self.command!r})",)


def write(name: str, content: bytes | None = None, sparse: int = 0) -> Prepare:
    """Return a function that replaces a file; `sparse` makes it so long, without using the disk."""

    def prepare(folder: Path) -> None:
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_bytes(content or b"")
        if sparse:
            os.truncate(path, sparse)

    return prepare


def pickled(name: str, kind: type[Payload], by_torch: bool) -> Prepare:
    """Return a function that writes a pickle with a payload."""

    def prepare(folder: Path) -> None:
        content = io.BytesIO()
        value = {"model": kind(folder), "itos": kind(folder), "optimizer": kind(folder)}
        torch.save(value, content) if by_torch else pickle.dump(value, content)
        (folder / name).write_bytes(content.getvalue())

    return prepare


def linked(name: str, target: str) -> Prepare:
    """Return a function that replaces a file by a link to another place."""

    def prepare(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return prepare


def pipe(name: str) -> Prepare:
    """Return a function that replaces a file by a pipe, which nobody writes to."""

    def prepare(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return prepare


def json_with(name: str, **changes: Any) -> Prepare:
    """Return a function that changes keys of a JSON object."""

    def prepare(folder: Path) -> None:
        content = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps({**content, **changes}))

    return prepare


def tensors(header: bytes, length: int | None = None, sparse: int = 0) -> bytes:
    """Return a safetensors file with a header, which may say another length than it has."""
    return struct.pack("<Q", len(header) if length is None else length) + header + b"\0" * sparse


def bombs(name: str) -> Iterator[tuple[str, Prepare]]:
    """Yield hostile safetensors files."""
    entry = {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 2**64 - 1]}
    many = {str(number): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(20_000)}
    yield "header of 2^63 bytes", write(name, tensors(b"{}", 2**63))
    yield "header of 99 MB", write(name, tensors(b"{" + b" " * 99_000_000 + b"}"))
    yield "header nested deep", write(name, tensors(DEEP))
    yield "tensor of 2^64 bytes", write(name, tensors(json.dumps({"lm_head.weight": entry}).encode()))
    yield "20,000 tensors", write(name, tensors(json.dumps(many).encode()))
    yield "file of 300 GB", write(name, sparse=300 << 30)
    yield "link to /dev/zero", linked(name, "/dev/zero")
    yield "pipe", pipe(name)


def yaml_bombs(folder_of_mark: Path) -> Iterator[tuple[str, bytes]]:
    """Yield hostile YAML."""
    command = f"touch {folder_of_mark.resolve() / MARK}"
    for tag in ("python/object/apply:os.system", "python/object/new:os.system"):
        yield tag, f"run: !!{tag} ['{command}']\n".encode()
    yield "python/name", b"run: {name: !!python/name:os.system }\n"
    levels = [f"k{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 30)]
    yield "aliases", ("k0: &a0 [lol]\n" + "\n".join(levels)).encode()
    yield "nested deep", b"run: " + DEEP
    yield "150 MB", b"run: {name: " + b"a" * HUGE + b"}\n"


def tokenizers(name: str) -> Iterator[tuple[str, Prepare]]:
    """Yield hostile tokenizer files."""
    yield "tokenizer nested deep", write(name, b'{"model": ' + DEEP)
    yield "tokenizer of 150 MB", write(name, b'{"model": "' + b"a" * HUGE + b'"}')
    yield "tokenizer of 300 GB", write(name, sparse=300 << 30)
    vocabulary = {"type": "BPE", "vocab": {"a": 10**12}, "merges": []}
    yield "token 10^12", write(name, json.dumps({"model": vocabulary, "decoder": {"type": "ByteLevel"}}).encode())
    yield "tokenizer is a pipe", pipe(name)


def zip_bomb(name: str) -> Prepare:
    """Return a function that writes a checkpoint of torch, of which one tensor expands to 1 GB."""

    def prepare(folder: Path) -> None:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({}))
            with archive.open("archive/data/0", "w") as member:
                for _ in range(64):
                    member.write(b"\0" * (16 << 20))
            archive.writestr("archive/version", "3\n")
        (folder / name).write_bytes(content.getvalue())

    return prepare


def seal(checkpoint: Path) -> None:
    """Give every file of a checkpoint the hash that its manifest says, where it can be read at all."""
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    for name, entry in manifest["files"].items():
        path = checkpoint / name
        if path.is_file() and path.stat().st_size < 1 << 30:
            content = path.read_bytes()
            entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        elif path.is_file():
            entry["size"] = path.stat().st_size
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
