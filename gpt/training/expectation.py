"""What a training will take on this machine: measured by steps of its own code over a few sequences."""

import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.accounting.flops import run_flops, training_flops, whole_flops
from gpt.accounting.machine import peak_memory_bytes
from gpt.accounting.memory_limits import least_moments
from gpt.accounting.parameters import count_parameters
from gpt.config import Config
from gpt.device import Compute, choose_compute
from gpt.environment import Settings
from gpt.errors import DeviceError
from gpt.evaluation.loss import summed_loss
from gpt.kernels.training.block import use_native_blocks
from gpt.model import GPT
from gpt.processor import supported_processors
from gpt.progress import Report, silent
from gpt.training.optimizers import build_optimizer

TRIAL_FLOPS = 8e9
"""The most in a step of the trial: a tenth of a second where small models are trained."""
TRIAL_SECONDS = 0.3


@dataclass(frozen=True)
class Expectation:
    """A training as a whole.

    Attributes:
        parameters: of the model.
        flops: of all steps, a teacher's included, as at the end of the training; see `run_flops`.
        nbytes: about the most memory of the process; None where a trial on this CPU says nothing about it.
        seconds: about how long it takes, without samples; None likewise.
    """

    parameters: int
    flops: int
    nbytes: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        size = f"{self.parameters:,} parameters, {self.flops / 1e12:,.3g} TFLOP"
        if self.nbytes is None or self.seconds is None:
            return size
        memory = f"about {self.nbytes / 2**20:,.0f} MiB of memory"
        return f"{size}; {memory} and {describe_seconds(self.seconds)} on this machine"


@dataclass(frozen=True)
class Trial:
    """A step of a training with one layer, and with fewer or shorter sequences where they would take long."""

    tokens: int
    flops: int
    gradients: float  # seconds of the forward and backward pass
    update: float  # seconds of the optimizer
    activations: int  # bytes that the forward pass of a layer keeps for the backward pass


def expect(config: Config, tokens: int, settings: Settings, report: Report = silent) -> Expectation:
    """Predict a training, in less than a second and without a trace in torch's generators.

    The time is that of the fastest of a few steps with one layer, scaled by FLOPs and layers.

    Args:
        config: `model.vocab_size` is set.
        tokens: of the whole corpus.
        report: takes lines of a compilation.
    """
    model, train = config.model, config.train
    parameters, flops = count_parameters(model).total, run_flops(config, round(tokens * (1 - config.data.val_fraction)))
    try:
        compute = choose_compute(config.run, silent, supported_processors(settings.processor)[0])
    except DeviceError:  # it is for another machine
        return Expectation(parameters, flops)
    if compute.device.type != "cpu":  # where blocks are compiled first
        return Expectation(parameters, flops)
    with torch.random.fork_rng(devices=[]):
        trial = _try(config, compute, settings, report)
    updates = (train.max_steps + train.teacher_steps) * trial.update * model.n_layer
    batch = train.batch_size * model.block_size
    whole, inputs = (1, model.n_layer) if train.activation_checkpointing else (model.n_layer, 0)  # that layers keep
    activations = round(batch * (whole * trial.activations / trial.tokens + inputs * 4 * model.n_embd))
    logits = 8 * batch * (model.vocab_size or 0)  # and their gradient
    soft_targets = 2 * tokens * (model.vocab_size or 0) if train.teacher_share is not None else 0
    held = 4 * parameters * (2 + least_moments(config.optim.name)) + soft_targets + logits
    nbytes = peak_memory_bytes(compute.device) + held + activations
    seconds = whole_flops(config, tokens) * trial.gradients / trial.flops + updates
    return Expectation(parameters, flops, nbytes, seconds)


def describe_seconds(seconds: float) -> str:
    """Return a time with two digits or so: 8 s, 1 min 40 s, 25 min, 3.2 h."""
    if seconds < 60:
        return f"{max(1, seconds):.0f} s"
    if seconds < 600:
        minutes, rest = divmod(10 * round(seconds / 10), 60)
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def _try(config: Config, compute: Compute, settings: Settings, report: Report) -> Trial:
    size, length = config.model.model_copy(update={"n_layer": 1}), config.model.block_size
    while length > 64 and training_flops(size, 1, length) > TRIAL_FLOPS:
        length //= 2
    sequences = max(1, min(config.train.batch_size, int(TRIAL_FLOPS / training_flops(size, 1, length))))
    model = GPT(size)
    if config.run.kernels != "torch" and config.run.compile is not True:
        with suppress(DeviceError):
            use_native_blocks(model, compute, settings, report)
    optimizer = build_optimizer(model, config.optim, compute.device, compute.fast_dtype)
    ids = torch.randint(size.vocab_size or 1, (sequences, length))

    def step() -> tuple[float, float]:
        begin = time.perf_counter()
        (summed_loss(model, ids, ids, compute) / ids.numel()).backward()  # type: ignore[no-untyped-call]
        middle = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        return middle - begin, time.perf_counter() - middle

    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        step()
    for parameter in model.parameters():
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    steps, end = [step()], time.perf_counter() + TRIAL_SECONDS
    while time.perf_counter() < end:
        steps.append(step())
    gradients, update = map(min, zip(*steps, strict=True))
    logits = 4 * ids.numel() * (size.vocab_size or 1)
    flops = training_flops(size, sequences, length)
    return Trial(ids.numel(), flops, gradients, update, max(0, sum(saved.values()) - logits))
