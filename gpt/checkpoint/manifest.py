"""Read the manifest of a checkpoint, and verify files by the size and sha256 that it states."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpt.system.device import available_bytes
from gpt.system.errors import CheckpointError, explained
from gpt.system.files import MAX_JSON_BYTES, MAX_SMALL_JSON_BYTES, parse_json, read_file, sha256_of

FORMAT = 1
"""The version of a checkpoint's layout; other versions are refused."""

MANIFEST = "manifest.json"
"""The name of the manifest; only a checkpoint's folder has both it and a config.yaml."""
MAX_PARSED_BYTES = {
    "state.json": MAX_SMALL_JSON_BYTES,
    "config.yaml": MAX_JSON_BYTES,
    "tokenizer.json": MAX_JSON_BYTES,
}
"""The largest sizes of files that are parsed: parsing takes many times a file's size in memory."""
MAX_OPTIMIZER_BYTES = 1 << 30
"""The largest size of optimizer.pt that is not compared with the size of the weights."""
MAX_OPTIMIZER_RATIO = 16
"""How many times larger than the weights optimizer.pt may be.

The two moments of AdamW take twice the size of float32 weights. The rest of the factor is left for
other optimizers.
"""


def verify_checkpoint(folder: Path) -> None:
    """Raise CheckpointError unless every file has the size and hash that the manifest states."""
    for name, entry in _read_manifest(folder).items():
        path = _path_of(folder, name)
        _check_size(path, entry)
        try:
            sha256 = sha256_of(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {explained(error)}") from None
        _check_hash(path, entry, sha256)


def check_sizes(folder: Path) -> None:
    """Raise CheckpointError unless every file has the size that the manifest states.

    The files together also have to fit into memory, and the size of optimizer.pt has to be
    plausible: a checkpoint that a stranger made must not exhaust the memory when it is read.
    """
    entries = _read_manifest(folder)
    _require_memory(folder, entries)
    for name, entry in entries.items():
        _check_size(_path_of(folder, name), entry)
    # This comes last, since it reads the sizes, which the loop has checked.
    _require_plausible_optimizer(folder, entries)


def read_files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read and verify some files; names that the manifest does not list are left out.

    Returns:
        The contents of the files, by name.
    """
    entries = _read_manifest(folder)
    listed_names = [name for name in names if name in entries]
    return {name: _read_verified(folder / name, entries[name]) for name in listed_names}


def _path_of(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder.

    A malicious manifest may have a name such as ../../file. Only its last part is used, so that no
    file outside of the folder is read.
    """
    return folder / Path(name).name


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest's entry for each file, by name.

    An entry has a size and a sha256, unless the manifest is damaged.
    """
    try:
        # A damaged manifest may have any JSON values. `int` raises an error for what is not a
        # number, and `dict` for what is not an object.
        manifest = parse_json(read_file(folder / MANIFEST, MAX_SMALL_JSON_BYTES))
        version = int(manifest["format"])
        entries = dict(manifest["files"])
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {MANIFEST}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / MANIFEST}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError):
        raise CheckpointError(f"{folder / MANIFEST} is damaged") from None
    if version != FORMAT:
        raise CheckpointError(
            f"{folder} has format {version}, and this version of gpt reads {FORMAT}; update gpt"
        )
    return entries


def _require_memory(folder: Path, entries: dict[str, Any]) -> None:
    """Raise CheckpointError if the files together are larger than the available memory."""
    # Entries without a size are skipped here; `_check_size` reports them later.
    sizes = [entry.get("size") for entry in entries.values() if isinstance(entry, dict)]
    needed = sum(size for size in sizes if isinstance(size, int))
    available = available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise CheckpointError(
            f"{folder} has {needed:,} bytes, and {available:,} bytes of memory are available"
        )


def _require_plausible_optimizer(folder: Path, entries: dict[str, Any]) -> None:
    """Raise CheckpointError if optimizer.pt is too large to be the state of any optimizer.

    The whole file is read into memory, and no other check limits its size.
    """
    if "model.safetensors" not in entries or "optimizer.pt" not in entries:
        return
    weights_size = entries["model.safetensors"]["size"]
    optimizer_size = entries["optimizer.pt"]["size"]
    if optimizer_size > max(MAX_OPTIMIZER_BYTES, MAX_OPTIMIZER_RATIO * weights_size):
        raise CheckpointError(
            f"{folder / 'optimizer.pt'} has an unreasonable size: "
            f"{optimizer_size:,} bytes for {weights_size:,} of weights"
        )


def _read_verified(path: Path, entry: Any) -> bytes:
    """Read a file, and compare its size and its hash with its entry in the manifest."""
    size = _check_size(path, entry)
    # `read_file` reads no more than this, even if the file has grown since its size was checked.
    # Files that are parsed have a lower limit.
    max_bytes = min(size, MAX_PARSED_BYTES.get(path.name, size))
    try:
        content = read_file(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {explained(error)}") from None
    _check_hash(path, entry, hashlib.sha256(content).hexdigest())
    return content


def _check_size(path: Path, entry: Any) -> int:
    """Return the size of a file; raise CheckpointError unless the manifest states it too."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        # `stat` raises ValueError for a name that no file can have, such as one with a null byte.
        raise CheckpointError(f"cannot read {path}: {explained(error)}") from None
    if not isinstance(entry, dict) or size != entry.get("size"):
        raise CheckpointError(
            f"{path} is damaged: it has {size:,} bytes, not the size in the manifest"
        )
    return size


def _check_hash(path: Path, entry: dict[str, Any], sha256: str) -> None:
    if sha256 != entry.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its sha256 differs from the manifest's")
