"""Load a trained model in one line, as in a notebook, and save one from your own training loop."""

from pathlib import Path
from typing import Any

from gpt.checkpoint import bare_checkpoint, build_model, load_trained, read_state, write_checkpoint
from gpt.data import Tokenizer
from gpt.model import GPT
from gpt.native.coverage import changed_module
from gpt.system.device import choose_device
from gpt.system.errors import CheckpointError, InputError
from gpt.system.files import text_for_path

MARK = {"saved_by": "gpt.save"}
"""In the state of a checkpoint, what tells that it may be replaced."""


def load(path: str | Path | None = None, device: str = "auto") -> tuple[GPT, Tokenizer]:
    """Load a trained model, in eval mode, and its tokenizer.

    Args:
        path: a run folder (its best checkpoint), a checkpoint folder, or `best` or `last` inside a
            run folder; None: the newest run below `runs`.
        device: auto, cpu, cuda, cuda:N or mps.

    Raises:
        CheckpointError: there is no checkpoint there, or it is damaged.
        DeviceError: there is no such device.
    """
    loaded = load_trained(
        Path(path) if path is not None else None, Path("runs"), choose_device(device)
    )
    return loaded.model, loaded.tokenizer


def save(model: GPT, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Save a model and its tokenizer as a checkpoint, which `gpt.load` and all commands read.

    It holds no state of an optimizer, so that a training cannot be resumed from it, but can begin with it
    (`train.init_from`). The folder is written whole or not at all.

    Args:
        model: on any device, in any mode; one in `DataParallel`, `DistributedDataParallel` or what
            `torch.compile` returned is saved as what it was made of.
        tokenizer: with at most as many ids as the model.
        folder: new, or written by an earlier `gpt.save`, which is replaced.

    Raises:
        CheckpointError: the folder holds something else, cannot be written, or the model is not a float32 or quantized
            one that its configuration builds; the message names what differs.
        InputError: `model` is not a `gpt.GPT`.
    """
    plain = _unwrapped(model)
    if not isinstance(plain, GPT):
        raise InputError(f"the model is a {type(plain).__name__}, expected a gpt.GPT")
    if text := text_for_path(folder):
        raise CheckpointError(f"{text}; give a folder to write")
    path = Path(folder)
    if path.exists() and not _may_be_replaced(path):
        raise CheckpointError(
            f"{path} exists already and is not from gpt.save; choose another folder, or remove it"
        )
    checkpoint = bare_checkpoint(plain, tokenizer, MARK)
    built = build_model(checkpoint, path)  # what cannot be loaded is not written
    if different := changed_module(plain, built=built) or _changed_tensor(plain, built):
        raise CheckpointError(
            f"model.config does not describe {different}: {path} would lose that; make it a plugin's, or use torch.save"
        )
    write_checkpoint(path, checkpoint)


def _unwrapped(model: Any) -> Any:
    """Return the model inside of what `torch.compile` returned, DataParallel and the like, in any order."""
    while not isinstance(model, GPT):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if inner is None:
            break
        model = inner
    return model


def _changed_tensor(model: GPT, built: GPT) -> str | None:
    """Return what a checkpoint does not hold, and another model built from it has otherwise; None: nothing."""
    head, embedding = model.lm_head.weight, model.wte.weight
    if model.config.tie_weights and head is not embedding and not head.equal(embedding):
        return "a head of its own beside model.tie_weights"
    tables = dict(built.named_buffers())
    return next(
        (
            n
            for n, table in model.named_buffers()
            if n not in tables or not table.cpu().equal(tables[n])
        ),
        None,
    )


def _may_be_replaced(folder: Path) -> bool:
    try:
        return read_state(folder).items() >= MARK.items()
    except CheckpointError:
        return False
