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
    """What a training step needs of an optimizer."""

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
        """Return the bytes that are held between two steps."""
        return self.weights + self.buffers + self.optimizer


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes of generating with a cache of one type."""

    weights: int  # float32 parameters, and buffers
    cache: int  # keys and values of all `block_size` positions, allocated at the start
    prefill_peak: int  # most bytes live while all tokens go through the model at once
    decode_peak: int  # most bytes live while the last token goes through, after a prefill of others


def training_memory(
    config: ModelConfig,
    batch: int,
    length: int,
    compute: Compute,
    prepare: Callable[[GPT], Optimizer],
    micro_batches: int = 1,
) -> TrainingMemory:
    """Predict the memory of a training step of `batch` sequences of `length` tokens.

    The step is rehearsed: its real code runs on tensors without memory.

    Args:
        prepare: changes a model as training does, and returns its optimizer, which is stepped too.
        micro_batches: how many there are in a step; their gradients are accumulated.
    """
    with rehearsal() as allocations, compute.device:
        model = GPT(config)
        of_model = allocations.live
        buffers = sum(buffer.nbytes for buffer in model.buffers())
        optimizer = prepare(model)
        _make_state(model, optimizer)
        of_optimizer = allocations.live - of_model

        inputs = torch.zeros(batch, length, dtype=torch.int64)
        targets = torch.zeros(batch, length, dtype=torch.int64)
        allocations.restart_peak()
        activations = 0
        # The second stands for all that follow: gradients exist during their forward passes.
        for _ in range(min(micro_batches, 2)):
            before = allocations.live
            between = _forward_and_backward(model, inputs, targets, compute, allocations)
            activations = between - before
        optimizer.step()
        gradients = [parameter.grad for parameter in model.parameters()]
        return TrainingMemory(
            weights=of_model - buffers,
            buffers=buffers,
            optimizer=of_optimizer,
            gradients=sum(gradient.nbytes for gradient in gradients if gradient is not None),
            activations=activations,
            peak=allocations.peak,
        )


def _make_state(model: GPT, optimizer: Optimizer) -> None:
    """Step an optimizer once on gradients of zero, so that it allocates its state."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    model.zero_grad(set_to_none=True)


def _forward_and_backward(
    model: GPT, inputs: Tensor, targets: Tensor, compute: Compute, allocations: AllocationMode
) -> int:
    """Run both passes of one micro-batch; return the bytes live between them."""
    loss = summed_loss(model, inputs, targets, compute) / targets.numel()
    live = allocations.live
    loss.backward()  # type: ignore[no-untyped-call]
    return live


@torch.no_grad()
def inference_memory(
    config: ModelConfig, batch: int, length: int, device: torch.device
) -> dict[str, InferenceMemory]:
    """Predict the memory of prefill and of decoding in float32, for each dtype of the cache."""
    with rehearsal() as allocations, device:
        model = GPT(config).eval()
        idx = torch.zeros(batch, length, dtype=torch.int64)
        weights = allocations.live - idx.nbytes
        memories = {}
        for kv_dtype in KV_DTYPES:
            cache = KVCache(config, batch, kv_dtype=kv_dtype, device=idx.device)
            memories[kv_dtype] = InferenceMemory(
                weights=weights,
                cache=cache.nbytes,
                prefill_peak=_peak_of_pass(model, idx, cache, 0, allocations),
                decode_peak=_peak_of_pass(model, idx, cache, length - 1, allocations),
            )
            del cache  # before that of the next dtype, which would be counted beside it
        return memories


def _peak_of_pass(
    model: GPT, idx: Tensor, cache: KVCache, stored: int, allocations: AllocationMode
) -> int:
    """Return the most bytes live while ids (B, T) go through, the first `stored` being cached."""
    cache.truncate(stored)
    allocations.restart_peak()
    model(idx[:, stored:], cache=cache)
    return allocations.peak
