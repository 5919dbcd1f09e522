"""The manifest of a checkpoint, which says the size and the sha256 of each file, and reading by it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpt.system.device import available_bytes
from gpt.system.errors import CheckpointError, explained
from gpt.system.files import MAX_JSON_BYTES, MAX_SMALL_JSON_BYTES, parse_json, read_file, sha256_of

FORMAT = 1
"""Version of the layout; others are refused."""

MANIFEST = "manifest.json"
MOST_BYTES = {"state.json": MAX_SMALL_JSON_BYTES, "config.yaml": MAX_JSON_BYTES, "tokenizer.json": MAX_JSON_BYTES}
"""Sizes of the largest files that are parsed, which takes many times their bytes."""
MOST_TRAINING = 1 << 30
"""Bytes that optimizer.pt may have beside weights of any size."""


def verify_checkpoint(folder: Path) -> None:
    """Raise CheckpointError where a file is not as the manifest says."""
    for name, entry in _read_manifest(folder).items():
        path = folder / Path(name).name
        _check_size(path, entry)
        try:
            sha256 = sha256_of(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {explained(error)}") from None
        _check_hash(path, entry, sha256)


def check_sizes(folder: Path) -> None:
    """Raise CheckpointError where a file has another size than the manifest says, or one that cannot be."""
    entries = _read_manifest(folder)
    _require_memory(folder, entries)
    for name, entry in entries.items():
        _check_size(folder / Path(name).name, entry)
    _require_likely(folder, entries)


def read_files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of some files by name, of those which the manifest lists, and nothing of others."""
    entries = _read_manifest(folder)
    return {name: _verified(folder / name, entries[name]) for name in names if name in entries}


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = parse_json(read_file(folder / MANIFEST, MAX_SMALL_JSON_BYTES))
        version, entries = int(manifest["format"]), dict(manifest["files"])
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {MANIFEST}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / MANIFEST}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError):
        raise CheckpointError(f"{folder / MANIFEST} is damaged") from None
    if version != FORMAT:
        raise CheckpointError(f"{folder} has format {version}, and this version of gpt reads {FORMAT}; update gpt")
    return entries


def _require_memory(folder: Path, entries: dict[str, Any]) -> None:
    sizes = [entry.get("size") for entry in entries.values() if isinstance(entry, dict)]
    needed, available = sum(size for size in sizes if isinstance(size, int)), available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise CheckpointError(f"{folder} has {needed:,} bytes, and {available:,} bytes of memory are available")


def _require_likely(folder: Path, entries: dict[str, Any]) -> None:
    """Raise CheckpointError where a training has more bytes than any optimizer keeps for weights of that size."""
    if "model.safetensors" not in entries or "optimizer.pt" not in entries:
        return
    size, weights = entries["optimizer.pt"]["size"], entries["model.safetensors"]["size"]
    if size > max(MOST_TRAINING, 16 * weights):
        file = folder / "optimizer.pt"
        raise CheckpointError(f"{file} has an absurd size: {size:,} bytes for {weights:,} of weights")


def _verified(path: Path, entry: Any) -> bytes:
    size = _check_size(path, entry)
    try:
        data = read_file(path, min(size, MOST_BYTES.get(path.name, size)))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {explained(error)}") from None
    _check_hash(path, entry, hashlib.sha256(data).hexdigest())
    return data


def _check_size(path: Path, entry: Any) -> int:
    """Return the size of a file, which is that of its entry in the manifest."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        # ValueError: a name that no file can have
        raise CheckpointError(f"cannot read {path}: {explained(error)}") from None
    if not isinstance(entry, dict) or size != entry.get("size"):
        raise CheckpointError(f"{path} is damaged: it has {size:,} bytes, not the size in the manifest")
    return size


def _check_hash(path: Path, entry: dict[str, Any], sha256: str) -> None:
    if sha256 != entry.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its sha256 differs from the manifest's")
