"""Files that somebody made to do harm, put into a checkpoint, a run folder or a model of another program."""

import hashlib
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
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


class Evaluated(Payload):
    """Runs Python where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return eval, (f"__import__('os').system({self.command!r})",)


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
