"""Memory of training and inference in bytes, predicted by running the real code on fake tensors.

This is eager PyTorch: no compiler fuses anything. Scratch memory inside operators, the allocator's
rounding and the libraries' own memory come on top.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.extras.accounting.allocations import AllocationMode, rehearsal
from gpt.generation.kv_cache import KV_DTYPES, KVCache
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.training.loss import summed_loss


class Optimizer(Protocol):
    def step(self) -> object: ...


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one training step."""

    weights: int  # float32 parameters, a tied one once
    buffers: int  # tables that are not trained
    optimizer: int
    gradients: int  # float32, held from the backward pass to the next step
    activations: int  # kept by the forward pass for the backward pass
    peak: int  # most bytes live at once during a step, including all of the above that is live then

    @property
    def persistent(self) -> int:
        return self.weights + self.buffers + self.optimizer


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes of generating with a cache of one type."""

    weights: int  # float32 parameters, and buffers
    cache: (
        int  # keys and values of `block_size` positions of every sequence, allocated at the start
    )
    prefill_peak: int  # most bytes live while all tokens go through the model at once
    decode_peak: (
        int  # most bytes live while the last token goes through, the others being in the cache
    )


def training_memory(
    config: ModelConfig,
    batch: int,
    length: int,
    compute: Compute,
    prepare: Callable[[GPT], Optimizer],
    micro_batches: int = 1,
) -> TrainingMemory:
    """Predict a training step over (batch, length) tokens, without allocating anything.

    `prepare` changes a model as its training does, and makes its optimizer, which is stepped in the rehearsal too. From
    the second micro-batch of a step on, gradients exist during the forward pass.
    """
    with rehearsal() as allocations, compute.device:
        model = GPT(config)
        held, buffers = allocations.live, sum(buffer.nbytes for buffer in model.buffers())
        optimizer = prepare(model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # makes the optimizer's state
        model.zero_grad(set_to_none=True)
        state = allocations.live - held
        inputs, targets = (torch.zeros(batch, length, dtype=torch.int64) for _ in range(2))
        allocations.restart_peak()
        activations = 0
        for _ in range(min(micro_batches, 2)):  # a third is like the second
            before = allocations.live
            activations = (
                _forward_and_backward(model, inputs, targets, compute, allocations) - before
            )
        optimizer.step()
        gradients = sum(
            parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None
        )
        return TrainingMemory(
            held - buffers, buffers, state, gradients, activations, allocations.peak
        )


def _forward_and_backward(
    model: GPT, inputs: Tensor, targets: Tensor, compute: Compute, allocations: AllocationMode
) -> int:
    """Return the bytes live between the two passes of one micro-batch."""
    loss = summed_loss(model, inputs, targets, compute) / targets.numel()
    live = allocations.live
    loss.backward()  # type: ignore[no-untyped-call]
    return live


@torch.no_grad()
def inference_memory(
    config: ModelConfig, batch: int, length: int, device: torch.device
) -> dict[str, InferenceMemory]:
    """Predict the memory of prefill and decoding in float32, by the type of the cache."""
    with rehearsal() as allocations, device:
        model = GPT(config).eval()
        idx = torch.zeros(batch, length, dtype=torch.int64)
        return {kind: _with_cache(model, idx, kind, allocations) for kind in KV_DTYPES}


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
