"""Split the sequences of an update into micro-batches whose training step, as predicted, fits into memory."""

from bisect import bisect_left

from gpt.accounting.memory import Optimizer, TrainingMemory, training_memory
from gpt.accounting.memory_limits import require_training_memory
from gpt.config import Config
from gpt.device import Compute, available_bytes, choose_compute
from gpt.errors import DeviceError
from gpt.model import GPT
from gpt.progress import Report, announced, silent
from gpt.training.optimizers import build_optimizer
from gpt.training.recomputing import checkpoint_activations

SHARES = {"cpu": 0.6, "cuda": 0.8, "mps": 0.6}
"""Of the memory of a device, that a predicted peak may take: libraries, scratch and the allocator need the rest.

On a CPU, glibc keeps freed blocks: a process took up to 1.55 times what was predicted, and several times that where
PyTorch's blocks, not the native ones, recompute activations. On CUDA nothing was measured.
"""
FITTED = ("batch_size", "grad_accum_steps", "activation_checkpointing")
"""Keys of `train` that are chosen here."""
LARGEST = 1_000_000
"""Sequences of the largest micro-batch that is tried."""


def predict_memory(config: Config, batch: int, length: int, compute: Compute) -> TrainingMemory:
    """Predict the training step of a configuration over micro-batches of (batch, length) tokens."""

    def prepare(model: GPT) -> Optimizer:
        if config.train.activation_checkpointing:
            checkpoint_activations(model)
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    return training_memory(config.model, batch, length, compute, prepare, config.train.grad_accum_steps)


def fit_memory(config: Config, limit: int, compute: Compute) -> Config:
    """Return the configuration with the largest micro-batches that fit, and as many sequences in an update as before.

    Where not even one sequence fits, activations are checkpointed.

    Args:
        config: resolved: `model.vocab_size` is set.
        limit: bytes of memory, of which the predicted peak takes at most the part in `SHARES`.
        compute: the device and dtype that the prediction is for.

    Raises:
        DeviceError: one sequence with checkpointed activations does not fit either.
    """
    share, sequences = SHARES[compute.device.type], config.train.sequences
    sizes = [size for size in range(1, min(sequences, LARGEST) + 1) if sequences % size == 0]
    # checkpointing that is asked for stays
    for checkpointing in sorted({config.train.activation_checkpointing, True}):
        *smaller, whole = (_split(config, size, checkpointing) for size in sizes)
        # most often nothing has to be split, and a prediction takes a second
        if _peak(whole, compute) <= share * limit:
            return whole
        if found := bisect_left(smaller, True, key=lambda split: _peak(split, compute) > share * limit):
            return smaller[found - 1]
    needs, has = (f"{size / 2**20:,.0f} MiB" for size in (_peak(_split(config, 1, True), compute) / share, limit))
    raise DeviceError(
        f"a training step needs {needs} of memory as predicted, even for one sequence at a time and with activation "
        f"checkpointing, and has {has}; lower model.block_size or the size of the model, or raise run.memory"
    )


def fit_run(config: Config, compute: Compute, saved: Config | None, report: Report) -> Config:
    """Return the configuration that `run.memory` asks for: split as that of the checkpoint to resume, if there is one.

    Raises:
        DeviceError: nothing fits, or the system does not tell how much memory is available.
    """
    is_split = config.run.memory is not None or (saved is not None and saved.run.memory is not None)
    if is_split and saved is not None and saved.train.sequences == config.train.sequences:
        return _split_as_saved(config, compute, saved, report)
    if config.run.memory is None:
        return config
    require_training_memory(_split(config, 1, True), compute)
    with announced(report, "predicting the memory of a training step"):
        fitted, line = fit_and_tell(config, compute)
    report(line)
    return fitted


def _split_as_saved(config: Config, compute: Compute, saved: Config, report: Report) -> Config:
    """Keep the split of a checkpoint, on which dropout depends; checkpointing, which changes no bit, can be added."""
    checkpointing = config.train.activation_checkpointing or saved.train.activation_checkpointing
    kept = _split(config, saved.train.batch_size, checkpointing)
    if config.run.memory is None:
        kept = kept.model_copy(update={"run": config.run.model_copy(update={"memory": saved.run.memory})})
    elif not checkpointing:
        with announced(report, "predicting the memory of a training step"):
            if _peak(kept, compute) > SHARES[compute.device.type] * _limit(config, compute):
                kept = _split(config, saved.train.batch_size, True)
    report(f"run.memory={kept.run.memory}: the split of the checkpoint is kept, {_describe(kept)}")
    return kept


def fit_and_tell(config: Config, compute: Compute) -> tuple[Config, str]:
    """Fit a configuration into `run.memory`, without which into what is available; return it and a line about it."""
    limit = _limit(config, compute)
    fitted = fit_memory(config, limit, compute)
    unmeasured = "" if compute.device.type == "cpu" else f", which was not measured on {compute.device.type} yet"
    return fitted, (
        f"run.memory={config.run.memory or 'auto'}, {limit / 2**20:,.0f} MiB: {_describe(fitted)} as predicted"
        f"{unmeasured}"
    )


def fit_unsized(config: Config, vocabulary: int, report: Report) -> Config:
    """Return a configuration whose model has no `vocab_size`, which is `vocabulary`, split to fit into `run.memory`.

    It may be for another machine: where its device is not here, the memory is predicted as that of a CPU.

    Raises:
        DeviceError: nothing fits, or `run.memory` is `auto` and the device is not here.
    """
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or vocabulary})
    try:
        compute = choose_compute(config.run, report)
    except DeviceError:
        if config.run.memory_bytes is None:
            raise
        compute = choose_compute(config.run.model_copy(update={"device": "cpu"}), silent)
        report(f"{config.run.device} is not on this machine: memory is predicted as on its CPU")
    fitted, line = fit_and_tell(config.model_copy(update={"model": model}), compute)
    report(line)
    return config.model_copy(update={"train": fitted.train})


def _limit(config: Config, compute: Compute) -> int:
    """Return the bytes that `run.memory` names, or without a size those that are available."""
    limit = config.run.memory_bytes or available_bytes(compute.device)
    if limit is None:
        raise DeviceError(f"this system does not tell how much memory {compute.device} has; set run.memory=8GB")
    return limit


def _describe(config: Config) -> str:
    train = config.train
    checkpointing = " train.activation_checkpointing=true" if train.activation_checkpointing else ""
    return f"train.batch_size={train.batch_size} train.grad_accum_steps={train.grad_accum_steps}{checkpointing}"


def _split(config: Config, size: int, checkpointing: bool) -> Config:
    """Return the configuration with micro-batches of `size` sequences, which divides those of an update."""
    values = {"batch_size": size, "grad_accum_steps": config.train.sequences // size}
    values |= {"activation_checkpointing": checkpointing}
    return config.model_copy(update={"train": config.train.model_copy(update=values)})


def _peak(config: Config, compute: Compute) -> int:
    return predict_memory(config, config.train.batch_size, config.model.block_size, compute).peak
