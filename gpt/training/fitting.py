"""Split the sequences of an update into micro-batches whose training step, as predicted, fits into memory."""

from bisect import bisect_left
from math import isqrt

from gpt.accounting.memory import Optimizer, TrainingMemory, training_memory
from gpt.accounting.memory_limits import require_training_memory
from gpt.config import Config
from gpt.device import Compute, available_bytes
from gpt.errors import DeviceError
from gpt.model import GPT
from gpt.progress import Report, announced
from gpt.training.optimizers import build_optimizer
from gpt.training.recomputing import checkpoint_activations

SHARE = 0.9
"""Of the memory, that a predicted peak may take: libraries, scratch and the allocator's rounding need the rest."""


def predict_memory(config: Config, batch: int, length: int, compute: Compute) -> TrainingMemory:
    """Predict the training step of a configuration over micro-batches of (batch, length) tokens."""

    def prepare(model: GPT) -> Optimizer:
        if config.train.activation_checkpointing:
            checkpoint_activations(model)
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    return training_memory(config.model, batch, length, compute, prepare, config.train.grad_accum_steps)


def fit_memory(config: Config, limit: int, compute: Compute) -> Config:
    """Return the configuration with the largest micro-batch that fits, and as many sequences in an update as before.

    Where not even one sequence does, activations are checkpointed.

    Args:
        config: resolved: `model.vocab_size` is set.
        limit: bytes of memory, of which the peak takes at most `SHARE`.
        compute: the device and dtype that the prediction is for.

    Raises:
        DeviceError: one sequence does not fit either; the message has the bytes that it takes.
    """
    sequences = config.train.sequences
    least = _split(config, 1, True)
    require_training_memory(least, compute)
    sizes = sorted({size for n in range(1, isqrt(sequences) + 1) if sequences % n == 0 for size in (n, sequences // n)})
    for checkpointing in sorted({config.train.activation_checkpointing, True}):

        def is_too_large(size: int, checkpointing: bool = checkpointing) -> bool:
            return _peak(_split(config, size, checkpointing), compute) > SHARE * limit

        if found := bisect_left(sizes, True, key=is_too_large):
            return _split(config, sizes[found - 1], checkpointing)
    needs, has = (f"{size / 2**30:,.2f} GiB" for size in (_peak(least, compute) / SHARE, limit))
    raise DeviceError(
        f"a training step needs {needs} of memory as predicted, even for one sequence at a time and with activation "
        f"checkpointing, and has {has}; lower model.block_size or the size of the model, or raise run.memory"
    )


def fit_run(config: Config, compute: Compute, saved: Config | None, report: Report) -> Config:
    """Return the configuration that `run.memory` asks for: that of the checkpoint to resume, where there is one.

    Raises:
        DeviceError: nothing fits, or the system does not tell how much memory is available.
    """
    if config.run.memory is None:
        return config
    if saved is not None and saved.train.sequences == config.train.sequences:
        checkpointing = config.train.activation_checkpointing or saved.train.activation_checkpointing
        return _split(config, saved.train.batch_size, checkpointing)
    limit = memory_limit(config, compute)
    with announced(report, "predicting the memory of a training step"):
        fitted = fit_memory(config, limit, compute)
    report(f"run.memory={config.run.memory}: {split_of(fitted)}, predicted to fit into {limit / 2**30:,.2f} GiB")
    return fitted


def memory_limit(config: Config, compute: Compute) -> int:
    """Return the bytes of `run.memory`, or those that are available on the device."""
    limit = config.run.memory_bytes or available_bytes(compute.device)
    if limit is None:
        raise DeviceError(f"this system does not tell how much memory {compute.device} has; set run.memory=8GB")
    return limit


def split_of(config: Config) -> str:
    """Return how a configuration splits an update, as its keys."""
    train = config.train
    checkpointing = " train.activation_checkpointing=true" if train.activation_checkpointing else ""
    return f"train.batch_size={train.batch_size} train.grad_accum_steps={train.grad_accum_steps}{checkpointing}"


def _split(config: Config, size: int, checkpointing: bool) -> Config:
    values = {"batch_size": size, "grad_accum_steps": config.train.sequences // size}
    values |= {"activation_checkpointing": checkpointing}
    return config.model_copy(update={"train": config.train.model_copy(update=values)})


def _peak(config: Config, compute: Compute) -> int:
    return predict_memory(config, config.train.batch_size, config.model.block_size, compute).peak
