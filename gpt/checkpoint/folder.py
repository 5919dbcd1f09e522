"""One checkpoint: a folder of plain files with a manifest of their hashes.

The folder is written under a temporary name, flushed to disk and renamed, and verified whenever it
is read. The weights are in a safetensors file; the other files have only tensors and plain values.
Reading any of the files cannot run code.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
"""The files of a checkpoint, without the manifest."""
READABLE_FOLDER = 0o755
READABLE_FILE = 0o644
"""Modes by which others may read a checkpoint, but only its owner may write it."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint."""

    model: dict[str, Tensor]  # weights by name; a tied weight has only one of its names
    training: dict[str, Any]  # optimizer, scaler and generator states: tensors and plain values
    state: dict[str, Any]  # step, losses and counters, as JSON values
    config: Config
    tokenizer: Tokenizer


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as `folder`.

    An existing folder is replaced. It still exists after a CheckpointError, which means that the
    checkpoint could not be written.
    """
    try:
        make_folder(folder.parent)
        with temporary_folder(folder) as temporary:
            # Python makes temporary folders that only their owner can read, but others may read a
            # checkpoint.
            temporary.chmod(READABLE_FOLDER)
            write_files(temporary, _serialize(checkpoint))
            _move_into_place(temporary, folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        # On a full disk, torch raises RuntimeError and safetensors SafetensorError.
        raise CheckpointError(f"cannot write {folder}: {explained(error)}") from error


def read_checkpoint(folder: Path, training: bool = True) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        training: whether to read optimizer.pt; otherwise `Checkpoint.training` stays empty.

    Raises:
        CheckpointError: a file is missing, damaged or not of this format, or a plugin is missing;
            the message names the file or the plugin.
    """
    # The sizes are checked before any file is read, since a huge file could fill the memory.
    check_sizes(folder)
    names = [name for name in FILES if training or name != "optimizer.pt"]
    files = read_files(folder, names)
    with _parsing(folder, "model.safetensors", files) as content:
        model = safetensors.torch.load(content)
    training_state: dict[str, Any] = {}
    if training:
        with _parsing(folder, "optimizer.pt", files) as content:
            training_state = _require_dict(load_pickle(io.BytesIO(content)))
    with _parsing(folder, "state.json", files) as content:
        state = _require_dict(parse_json(content))
        # The plugins are checked before the configuration is parsed: without them it may have names
        # that are not known, whose error would not tell the user which plugin is missing.
        require_plugins(state.get("plugins"))
    with _parsing(folder, "config.yaml", files) as content:
        config = parse_config(content.decode("utf-8"), str(folder / "config.yaml"))
    with _parsing(folder, "tokenizer.json", files) as content:
        tokenizer = tokenizer_from_dict(parse_json(content))
    return Checkpoint(model, training_state, state, config, tokenizer)


@contextmanager
def _parsing(folder: Path, name: str, files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the content of a file, and turn an error in this context into one that names the file.

    The new error is a CheckpointError.
    """
    if name not in files:
        raise CheckpointError(f"{folder / MANIFEST} does not list {name}")
    try:
        yield files[name]
    except CheckpointError as error:
        # The message says what is wrong, but not in which checkpoint.
        raise CheckpointError(f"{folder}: {error}") from None
    except Exception as error:
        # For a damaged or malicious file a parser can raise any error.
        raise CheckpointError(f"{folder / name} cannot be read: {explained(error)}") from None


def _require_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it holds no names and values")
    return value


def _serialize(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Return the content of each file of a checkpoint, by the file's name."""
    # safetensors refuses tensors that are not contiguous.
    weights = {name: value.detach().contiguous() for name, value in checkpoint.model.items()}
    optimizer_file = io.BytesIO()
    torch.save(checkpoint.training, optimizer_file)
    return {
        "model.safetensors": safetensors.torch.save(weights),
        "optimizer.pt": optimizer_file.getvalue(),
        "state.json": json.dumps(checkpoint.state, indent=1).encode(),
        "config.yaml": dump_config(checkpoint.config).encode(),
        "tokenizer.json": json.dumps(checkpoint.tokenizer.to_dict()).encode(),
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files and then their manifest, each flushed to disk.

    The manifest comes last: a folder without a manifest is not taken for a checkpoint.
    """
    entries = {}
    for name, content in files.items():
        entries[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = json.dumps({"format": FORMAT, "files": entries}, indent=1).encode()
    for name, content in {**files, MANIFEST: manifest}.items():
        path = folder / name
        path.write_bytes(content)
        path.chmod(READABLE_FILE)  # a strict umask would keep others from reading the file
        sync_file(path)
    # The folder's list of files is flushed too: without it, a file could be gone after a power cut.
    sync_folder(folder)


def _move_into_place(temporary: Path, folder: Path) -> None:
    """Rename a temporary folder to `folder`.

    A rename cannot replace a folder that has content. So an existing folder is first renamed to end
    in `.old`. Readers look there too, so that a crash between the two renames loses nothing.
    """
    aside = folder.with_name(folder.name + ".old")
    # After such a crash `aside` is the only copy, and `folder` does not exist. Then `aside` stays
    # until the new folder is in place.
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)  # an older copy, which is not needed any more
        folder.rename(aside)
    try:
        temporary.rename(folder)
    except OSError:
        # The existing checkpoint goes back to its place.
        if aside.exists():
            aside.rename(folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def read_state(folder: Path) -> dict[str, Any]:
    """Read and verify the state of a checkpoint (step, losses, counters), but no other file."""
    path = folder / "state.json"
    # If the manifest does not list the file, `read_files` leaves it out. Its content is then taken
    # for empty, for which `parse_json` raises an error.
    content = read_files(folder, [path.name]).get(path.name, b"")
    try:
        return dict(parse_json(content))
    except (ValueError, TypeError):
        raise CheckpointError(f"{path} cannot be read: it holds no names and values") from None


def read_description(folder: Path) -> tuple[Config, Tokenizer]:
    """Read and verify the configuration and the tokenizer of a checkpoint, but no other file."""
    files = read_files(folder, ["config.yaml", "tokenizer.json"])
    try:
        config = parse_config(files["config.yaml"].decode("utf-8"), str(folder / "config.yaml"))
        return config, tokenizer_from_dict(parse_json(files["tokenizer.json"]))
    except (GPTError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} cannot be read: {explained(error)}") from None
