"""Files made to do harm: nothing in them is run, nothing is written elsewhere, and memory stays bounded."""

import hashlib
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from drills.forks import Death, prepare_to_fork, run_forked
from drills.leftovers import contents, hidden_files, train_tiny
from gpt.cli import evaluate, export, import_model, sample, train

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


QUICK = (
    "checkpoint: optimizer.pt Payload",
    "import: meta.pkl Payload",
    "checkpoint: pipe",
    "recipe: aliases",
    "resume: samples is a link to elsewhere",
)
MAX_BYTES = 1 << 30
NEWEST = "runs/tiny/checkpoints/step-000006"
SAMPLE = ["--checkpoint", "runs/tiny", "--prompt", "It", "--max-new-tokens", "2"]
RESUME = ["--config", "tiny.yaml", "--resume", "runs/tiny/checkpoints/step-000003"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
NANOGPT = ["--from", "nanogpt", "--input", "folder/ckpt.pt", "--output", "imported"]
EXPORT = ["--to", "hf", "--checkpoint", "runs/tiny", "--output"]


@dataclass(frozen=True)
class Attack:
    """A hostile file, and what reads it.

    Attributes:
        name: shown in failures.
        target: folder that the file is put into.
        prepare: puts it there.
        run: reads it, and has to return one of `codes`, without a traceback.
        codes: 2, or 0 where the file does no harm or is replaced by one that does not.
    """

    name: str
    target: str
    prepare: Prepare
    run: Callable[[], int]
    codes: tuple[int, ...] = (2,)


def attacks(folder: Path) -> Iterator[Attack]:
    """Yield all attacks on a folder with the run `runs/tiny` and its export `folder`."""

    def sampled(name: str, prepare: Prepare) -> Attack:
        return Attack(f"checkpoint: {name}", NEWEST, prepare, partial(sample.main, SAMPLE))

    def imported(name: str, prepare: Prepare, arguments: list[str] = IMPORT) -> Attack:
        return Attack(f"import: {name}", "folder", prepare, partial(import_model.main, arguments))

    def resumed(name: str, prepare: Prepare) -> Attack:
        name = f"resume: {name} is a link to elsewhere"
        return Attack(name, "runs/tiny", prepare, partial(train.main, RESUME), (0, 2))

    resume = partial(train.main, ["--config", "tiny.yaml", "--resume", NEWEST])  # nothing else reads an optimizer
    yield Attack("checkpoint: optimizer.pt expands to 1 GB", NEWEST, zip_bomb("optimizer.pt"), resume)
    for kind in (Payload, Allocation):
        yield Attack(f"checkpoint: optimizer.pt {kind.__name__}", NEWEST, pickled("optimizer.pt", kind, True), resume)
        for by_torch in (True, False):
            yield imported(f"ckpt.pt {kind.__name__} {by_torch}", pickled("ckpt.pt", kind, by_torch), NANOGPT)
        yield imported(f"meta.pkl {kind.__name__}", pickled("meta.pkl", kind, False, beside_checkpoint=True), NANOGPT)
    yield imported("ckpt.pt expands to 1 GB", zip_bomb("ckpt.pt"), NANOGPT)
    for name, prepare in (*tensor_files("model.safetensors"), *tokenizer_files("tokenizer.json")):
        yield sampled(name, prepare)
        yield imported(name, prepare)
    for name in ("h.0.mlp.c_fc.rounded", "h.0.mlp.c_fc.integers"):
        yield sampled(name, with_tensor("model.safetensors", name))
    yield sampled("tables of 10^8 positions", huge_tables)
    corpus = yaml_with("config.yaml", data={"source": "file", "path": "outside/secret", "dir": "outside"})
    evaluation = partial(evaluate.main, ["--checkpoint", "runs/tiny"])
    yield Attack("checkpoint: its corpus is elsewhere", NEWEST, corpus, evaluation)
    for name, content in yaml_files(folder):
        yield sampled(f"config.yaml {name}", write("config.yaml", content))
        yield Attack(f"recipe: {name}", ".", write("tiny.yaml", content), partial(train.main, RESUME))
    yield sampled("manifest of 300 GB", write("manifest.json", sparse=300 << 30))
    yield sampled("manifest names a file outside", json_with("manifest.json", files={"../../../../outside/secret": {}}))
    yield imported("sizes of 10^9", json_with("config.json", n_layer=10**9, num_hidden_layers=10**9, n_embd=10**9))
    yield imported("config.json of 300 GB", write("config.json", sparse=300 << 30))
    yield imported("config.json is a pipe", pipe("config.json"))
    index = json.dumps({"weight_map": {"a": "../outside/secret"}}).encode()
    yield imported("shards outside", write("model.safetensors.index.json", index))
    for name in ("samples", "checkpoints"):
        yield resumed(name, moved(name))
    for name in ("metrics.jsonl", "config.yaml", "last.json", "best.json"):
        yield resumed(name, linked(name, "../../outside/secret"))
    for name in ("../evil", "/tmp/evil", "a/b", "..", ".", "a\0b"):
        run = partial(train.main, ["--config", "tiny.yaml", f"run.name={name!r}"])
        yield Attack(f"run.name={name!r}", ".", lambda folder: None, run)
    run = partial(export.main, [*EXPORT, f"{NEWEST}/folder"])
    yield Attack("export into a checkpoint", ".", lambda folder: None, run)


def run(folder: Path, full: bool) -> Iterator[tuple[str, str, str]]:
    prepare_to_fork()
    origin, place = folder / "origin", folder / "place"
    origin.mkdir()
    train_tiny(origin, "train.keep_last=9")
    (origin / "outside").mkdir()
    (origin / "outside" / "secret").write_text("untouched")
    exported = run_forked(partial(export.main, [*EXPORT, "folder"]), origin)
    assert exported.code == 0, exported.output
    for attack in attacks(place):
        if full or attack.name in QUICK:
            shutil.copytree(origin, place)
            yield "hostile files refused", attack.name, ", ".join(_harm(attack, place))
            shutil.rmtree(place)


def _files(folder: Path) -> tuple[dict[str, str], list[str]]:
    return contents(folder), hidden_files(folder)


def _harm(attack: Attack, place: Path) -> list[str]:
    attack.prepare(place / attack.target)
    if attack.name.startswith("checkpoint") and "manifest" not in attack.name:
        seal(place / NEWEST)
    before, encoded = _files(place / "outside"), _files(place / "data")
    ending = run_forked(attack.run, place, Death(more_memory=4 * MAX_BYTES))
    is_refused = ending.code in attack.codes and "Traceback" not in ending.output
    harm = {
        "code in it was run": bool(list(place.rglob(MARK))),
        "something outside was changed": _files(place / "outside") != before,
        "token files of it are left": ending.code != 0 and _files(place / "data") != encoded,
        f"{ending.memory >> 20} MiB of memory": ending.memory >= MAX_BYTES,
        f"exit code {ending.code}: {ending.output[-300:]}": not is_refused,
    }
    return [what for what, is_done in harm.items() if is_done]
