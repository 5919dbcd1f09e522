"""Load a trained model in one line, as in a notebook, and save one from your own training loop."""

from pathlib import Path
from typing import Any

from gpt.checkpoint import (
    RUNS,
    bare_checkpoint,
    build_model,
    load_trained,
    read_state,
    write_checkpoint,
)
from gpt.data import Tokenizer
from gpt.model import GPT
from gpt.native.coverage import changed_module
from gpt.system.device import choose_device
from gpt.system.errors import CheckpointError, InputError
from gpt.system.files import text_for_path

MARK = {"saved_by": "gpt.save"}
"""Entry in the state of a checkpoint that `save` wrote, and that `save` may therefore replace."""


def load(path: str | Path | None = None, device: str = "auto") -> tuple[GPT, Tokenizer]:
    """Load a trained model, in eval mode, and its tokenizer.

    Args:
        path: a run folder or the name of a run below `runs` (its best checkpoint), a checkpoint
            folder, or `best` or `last` inside a run folder; None: the newest run below `runs`.
        device: auto, cpu, cuda, cuda:N or mps.

    Raises:
        CheckpointError: there is no checkpoint there, or it is damaged.
        DeviceError: there is no such device.
    """
    folder = None if path is None else Path(path)
    loaded = load_trained(folder, RUNS, choose_device(device))
    return loaded.model, loaded.tokenizer


def save(model: GPT, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Save a model and its tokenizer as a checkpoint, which `gpt.load` and all commands read.

    The checkpoint has no optimizer state: no training can be resumed from it, but one can start
    from its weights (`train.init_from`). The folder is written whole or not at all.

    Args:
        model: a `gpt.GPT` on any device, in any mode. A wrapper of one, as `DataParallel`,
            `DistributedDataParallel` and `torch.compile` return, is saved as the model inside.
        tokenizer: with at most as many ids as the model.
        folder: a new folder, or one of an earlier `gpt.save`, which is replaced.

    Raises:
        CheckpointError: the folder holds something else or cannot be written, or the model is not
            one that its configuration builds; the message names what differs.
        InputError: `model` is not a `gpt.GPT`.
    """
    plain = _unwrapped(model)
    if not isinstance(plain, GPT):
        raise InputError(f"the model is a {type(plain).__name__}, expected a gpt.GPT")
    text = text_for_path(folder)
    if text is not None:
        raise CheckpointError(f"{text}; give a folder to write")
    path = Path(folder)
    if path.exists() and not _may_be_replaced(path):
        raise CheckpointError(
            f"{path} exists already and is not from gpt.save; choose another folder, or remove it"
        )
    checkpoint = bare_checkpoint(plain, tokenizer, MARK)
    # `load` builds a model from the configuration. The same is done here, to compare: whatever was
    # changed by hand, such as a hook or another module, would be lost silently.
    built = build_model(checkpoint, path)
    different = changed_module(plain, built=built) or _changed_tensor(plain, built)
    if different is not None:
        raise CheckpointError(
            f"model.config does not describe {different}: {path} would lose that; "
            "make it a plugin's, or use torch.save"
        )
    write_checkpoint(path, checkpoint)


def _unwrapped(model: Any) -> Any:
    """Return the model inside of wrappers, of which there may be several in any order."""
    while not isinstance(model, GPT):
        compiled = getattr(model, "_orig_mod", None)  # of torch.compile
        inner = compiled or getattr(model, "module", None)  # of the parallel wrappers
        if inner is None:
            return model
        model = inner
    return model


def _changed_tensor(model: GPT, built: GPT) -> str | None:
    """Return the name of a tensor that a checkpoint does not hold and that differs from `built`.

    Checkpoints have neither the tables of positions nor the head of a model that ties it.
    """
    head = model.lm_head.weight
    embedding = model.wte.weight
    if model.config.tie_weights:
        is_tied = head is embedding or head.equal(embedding)
        if not is_tied:
            return "a head of its own beside model.tie_weights"
    tables = dict(built.named_buffers())
    for name, table in model.named_buffers():
        if name not in tables or not table.cpu().equal(tables[name]):
            return name
    return None


def _may_be_replaced(folder: Path) -> bool:
    try:
        state = read_state(folder)
    except CheckpointError:  # the folder is no checkpoint
        return False
    return state.items() >= MARK.items()
