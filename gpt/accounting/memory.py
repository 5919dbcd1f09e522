"""Bytes that training and inference hold, predicted by a rehearsal of the real code on fake tensors.

Eager PyTorch: no compiler merges anything. What an operator needs inside itself, the allocator's
rounding and the libraries' own memory come on top.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.accounting.allocations import AllocationMode, Rehearsal
from gpt.cache import KV_DTYPES, KVCache
from gpt.config import ModelConfig
from gpt.device import Compute
from gpt.errors import ConfigError
from gpt.evaluation.loss import summed_loss
from gpt.model import GPT


def _adamw(parameter: Tensor) -> int:
    return 2 * 4 * parameter.numel() + 4  # two moments and the step count, all float32


def _muon(parameter: Tensor) -> int:
    return 4 * parameter.numel()  # the momentum


OPTIMIZER_STATE: dict[str, tuple[Callable[[Tensor], int], Callable[[Tensor], int]]] = {
    "adamw": (_adamw, _adamw),
    "muon": (_muon, _adamw),
}
"""Bytes of what an optimizer of that name keeps for a matrix of the blocks, and for any other tensor."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one training step.

    Attributes:
        weights: float32 parameters, a tied one once.
        buffers: tables that are not trained.
        optimizer: the optimizer's state.
        gradients: float32, held from the backward pass to the next step.
        activations: live when the forward pass ends, for the backward pass to use.
        peak: most bytes live at once in a step, with everything above that is live then.
    """

    weights: int
    buffers: int
    optimizer: int
    gradients: int
    activations: int
    peak: int

    @property
    def persistent(self) -> int:
        """Held all the time: weights, buffers and optimizer state."""
        return self.weights + self.buffers + self.optimizer


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes of generating with a cache of one type.

    Attributes:
        weights: float32 parameters, and buffers.
        cache: keys and values of `block_size` positions in every row, allocated from the start.
        prefill_peak: most bytes live while all tokens go through the model at once.
        decode_peak: most bytes live while the last of them does, the others being in the cache.
    """

    weights: int
    cache: int
    prefill_peak: int
    decode_peak: int


def training_memory(
    config: ModelConfig, batch: int, length: int, compute: Compute, optimizer: str, micro_batches: int = 1
) -> TrainingMemory:
    """Predict a training step over (batch, length) tokens, without allocating anything.

    Args:
        config: with `vocab_size` set.
        batch: sequences B of a micro-batch.
        length: tokens T of a sequence.
        compute: where, and in which type matrix products are done.
        optimizer: one of `OPTIMIZER_STATE`.
        micro_batches: of one step; from the second on, gradients are there during the forward pass.

    Raises:
        ConfigError: no optimizer has that name.
    """
    if optimizer not in OPTIMIZER_STATE:
        raise ConfigError(f"no optimizer {optimizer!r}; there are {', '.join(OPTIMIZER_STATE)}")
    with Rehearsal() as rehearsal, compute.device:
        allocations = rehearsal.allocations
        model = GPT(config)
        parameters, buffers = list(model.parameters()), sum(buffer.nbytes for buffer in model.buffers())
        start = allocations.live
        inputs, targets = (torch.zeros(batch, length, dtype=torch.int64) for _ in range(2))
        allocations.restart_peak()
        activations = 0
        for _ in range(min(micro_batches, 2)):  # a third is like the second
            before = allocations.live
            activations = _forward_and_backward(model, inputs, targets, compute, allocations) - before
        matrices = {id(parameter) for parameter in model.h.parameters() if parameter.dim() == 2}
        of_matrix, of_other = OPTIMIZER_STATE[optimizer]
        state = sum((of_matrix if id(p) in matrices else of_other)(p) for p in parameters)
        gradients = sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None)
        return TrainingMemory(start - buffers, buffers, state, gradients, activations, allocations.peak + state)


def _forward_and_backward(
    model: GPT, inputs: Tensor, targets: Tensor, compute: Compute, allocations: AllocationMode
) -> int:
    """What a training step does with one micro-batch; returns the bytes live between the two passes."""
    loss = summed_loss(model, inputs, targets, compute) / targets.numel()
    live = allocations.live
    loss.backward()  # type: ignore[no-untyped-call]
    return live


@torch.no_grad()
def inference_memory(config: ModelConfig, batch: int, length: int, device: torch.device) -> dict[str, InferenceMemory]:
    """Predict prefill and decoding in float32, for every type that a cache can have, by its name.

    Args:
        config: with `vocab_size` set.
        batch: rows B.
        length: tokens T of a row, at most `block_size`.
        device: where.
    """
    with Rehearsal() as rehearsal, device:
        model = GPT(config).eval()
        idx = torch.zeros(batch, length, dtype=torch.int64)
        return {kind: _with_cache(model, idx, kind, rehearsal.allocations) for kind in KV_DTYPES}


def _with_cache(model: GPT, idx: Tensor, kind: str, allocations: AllocationMode) -> InferenceMemory:
    weights = allocations.live - idx.nbytes
    cache = KVCache(model.config, idx.size(0), kv_dtype=kind, device=idx.device)
    peaks = []
    for stored in (0, idx.size(1) - 1):
        cache.truncate(stored)
        allocations.restart_peak()
        model(idx[:, stored:], cache=cache)
        peaks.append(allocations.peak)
    return InferenceMemory(weights, cache.nbytes, *peaks)
