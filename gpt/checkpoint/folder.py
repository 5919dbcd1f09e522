"""One checkpoint: a folder of plain files with a manifest of their hashes.

It is written under a temporary name, flushed and renamed, and verified whenever it is read. The weights
are safetensors, the rest tensors and plain values: reading one cannot run code.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from gpt.checkpoint.manifest import FORMAT, MANIFEST, check_sizes, read_files
from gpt.checkpoint.pickles import load_pickle
from gpt.config import Config
from gpt.config.loading import dump_config, parse_config
from gpt.config.plugins import require_plugins
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer
from gpt.system.errors import CheckpointError, GPTError, explained
from gpt.system.files import make_folder, parse_json, sync_file, sync_folder, temporary_folder

FILES = ("model.safetensors", "optimizer.pt", "state.json", "config.yaml", "tokenizer.json")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint."""

    model: dict[str, Tensor]  # weights; a tied weight has one name
    training: dict[str, Any]  # optimizer, scaler and generator states: tensors and plain values
    state: dict[str, Any]  # step, losses and counters, as JSON values
    config: Config
    tokenizer: Tokenizer


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as `folder`, replacing an existing one, which is still there after a CheckpointError."""
    try:
        make_folder(folder.parent)
        with temporary_folder(folder) as temporary:
            temporary.chmod(0o755)
            _write_files(temporary, _serialize(checkpoint))
            _move_into_place(temporary, folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors raise these on a full disk
        raise CheckpointError(f"cannot write {folder}: {explained(error)}") from error


def read_checkpoint(folder: Path, training: bool = True) -> Checkpoint:
    """Read and verify a checkpoint; without `training`, that of it stays empty, and its file is not read.

    A CheckpointError names the file that is missing, damaged or not of this format, or the plugin that is missing.
    """
    check_sizes(folder)
    files = read_files(folder, [name for name in FILES if training or name != "optimizer.pt"])
    name = ""
    try:
        name = "model.safetensors"
        model = safetensors.torch.load(files[name])
        name = "optimizer.pt"
        states = load_pickle(io.BytesIO(files[name])) if training else {}
        name = "state.json"
        state = parse_json(files[name])
        require_plugins(state.get("plugins"))
        name = "config.yaml"
        config = parse_config(files[name].decode("utf-8"), str(folder / name))
        name = "tokenizer.json"
        tokenizer = tokenizer_from_dict(parse_json(files[name]))
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    except Exception as error:
        # foreign bytes make an unpickler raise anything
        if name not in files:
            raise CheckpointError(f"{folder / MANIFEST} does not list {name}") from None
        raise CheckpointError(f"{folder / name} cannot be read: {explained(error)}") from None
    for name, value in (("optimizer.pt", states), ("state.json", state)):
        if not isinstance(value, dict):
            raise CheckpointError(f"{folder / name} cannot be read: it holds no names and values")
    return Checkpoint(model, states, state, config, tokenizer)


def _serialize(checkpoint: Checkpoint) -> dict[str, bytes]:
    training = io.BytesIO()
    torch.save(checkpoint.training, training)
    return {
        "model.safetensors": safetensors.torch.save({k: v.detach().contiguous() for k, v in checkpoint.model.items()}),
        "optimizer.pt": training.getvalue(),
        "state.json": json.dumps(checkpoint.state, indent=1).encode(),
        "config.yaml": dump_config(checkpoint.config).encode(),
        "tokenizer.json": json.dumps(checkpoint.tokenizer.to_dict()).encode(),
    }


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files and then their manifest, each flushed to disk."""
    manifest = {
        "format": FORMAT,
        "files": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
        },
    }
    for name, data in {**files, MANIFEST: json.dumps(manifest, indent=1).encode()}.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o644)
        sync_file(folder / name)
    sync_folder(folder)


def _move_into_place(temporary: Path, folder: Path) -> None:
    """Rename the folder; an existing one is first moved aside, under a name that readers still find."""
    aside = folder.with_name(folder.name + ".old")
    # if there is no folder, `aside` may be the only copy, left by a crash before the next rename
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    try:
        temporary.rename(folder)
    except OSError:
        if aside.exists():
            aside.rename(folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def read_state(folder: Path) -> dict[str, Any]:
    """Read and verify the progress that a checkpoint was written at, and nothing else of it."""
    path = folder / "state.json"
    data = read_files(folder, [path.name]).get(path.name, b"")
    try:
        return dict(parse_json(data))
    except (ValueError, TypeError):
        raise CheckpointError(f"{path} cannot be read: it holds no names and values") from None


def read_description(folder: Path) -> tuple[Config, Tokenizer]:
    """Read and verify the configuration and the tokenizer of a checkpoint, and nothing else of it."""
    files = read_files(folder, ["config.yaml", "tokenizer.json"])
    try:
        config = parse_config(files["config.yaml"].decode("utf-8"), str(folder / "config.yaml"))
        return config, tokenizer_from_dict(parse_json(files["tokenizer.json"]))
    except (GPTError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} cannot be read: {explained(error)}") from None
