"""Check at the start of a training that its checkpoints fit on the disk."""

import shutil
from pathlib import Path

from gpt.accounting.memory_limits import BLOCK_BYTES, least_moments, model_bytes
from gpt.config import Config
from gpt.errors import CheckpointError


def checkpoint_bytes(config: Config) -> int:
    """Return the least bytes of a checkpoint: weights, moments and moving average in float32; `vocab_size` is set."""
    weights = model_bytes(config.model) - config.model.n_layer * BLOCK_BYTES
    return weights * (1 + least_moments(config.optim.name) + (config.optim.ema_decay is not None))


def require_disk(folder: Path, config: Config, checkpoints: int) -> None:
    """Raise CheckpointError unless checkpoints fit; a new one is written before an old one is removed.

    Args:
        folder: the run folder, which need not exist yet.
        config: resolved: `model.vocab_size` is set.
        checkpoints: how many have to fit.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    needed, free = checkpoints * checkpoint_bytes(config), shutil.disk_usage(existing).free
    if needed > free:
        needs, has = (f"{size / 2**20:,.1f} MiB" for size in (needed, free))
        raise CheckpointError(
            f"the checkpoints of {folder} need at least {needs}, and its disk has {has} free; make room or set run.dir"
        )
