"""Cross-entropy of a batch, and its mean over a split, which is read in windows.

There are two protocols, whose losses are not comparable. `full_batches` reads a text once, in
adjacent blocks of `block_size`; the reported losses are computed from these. `sliding_batches`
reads overlapping windows, so that every token has a long context.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.data.tokens import IGNORE, Tokens, release_pages
from gpt.model import eval_mode
from gpt.system.device import Compute, to_device

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, each (B, T) int64, on the CPU."""


@dataclass(frozen=True)
class Evaluation:
    """The loss over a text.

    Attributes:
        loss: the mean, in nats per token.
        tokens: the number of targets over which the loss is the mean.
    """

    loss: float
    tokens: int

    def bits_per_char(self, chars_per_token: float) -> float:
        """Return the loss in bits per character, which is comparable between tokenizers."""
        return self.loss / math.log(2) / chars_per_token


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum `-log softmax(logits)[target]` over positions, in nats.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64.
    """
    rows = logits.flatten(0, 1)  # (B T, V)
    return F.cross_entropy(rows, targets.flatten(), ignore_index=IGNORE, reduction="sum")


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor, compute: Compute) -> Tensor:
    """Run the model on inputs and targets, (B, T) each; return the summed cross-entropy, in nats.

    The logits are freed on return, since they would raise the peak memory of a backward pass.
    """
    with compute.autocast():
        logits = model(to_device(inputs, compute.device))
    return summed_cross_entropy(logits, to_device(targets, compute.device))


def never_stop() -> None:
    """Let an evaluation run to its end."""


def evaluate(
    model: nn.Module,
    batches: Iterator[Batch],
    compute: Compute,
    poll: Callable[[], None] = never_stop,
) -> Evaluation:
    """Compute the mean loss over batches, such as those of `full_batches`, in eval mode.

    Args:
        poll: called before every batch; an exception that it raises ends the evaluation.
    """
    # On a CPU each core computes batches of its own, since cores that share a batch wait for each
    # other.
    if _can_use_threads(model, compute):
        losses, num_targets = _losses_by_threads(model, batches, compute, poll)
    else:
        losses, num_targets = batch_losses(model, batches, compute, poll)
    # `fsum` rounds only once, at the end. So the sum does not depend on the order of the losses,
    # and is the same if several processes share the batches, as they do in
    # `gpt.training.parallel.evaluate_together`.
    return Evaluation(math.fsum(losses) / num_targets, num_targets)


@torch.no_grad()
def batch_losses(
    model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None]
) -> tuple[list[float], int]:
    """Return the loss of each batch, summed over positions, and the number of all targets.

    The arguments are those of `evaluate`.
    """
    losses: list[Tensor] = []
    num_targets = 0
    with eval_mode(model):
        for inputs, targets in batches:
            poll()
            losses.append(summed_loss(model, inputs, targets, compute))
            # The targets are on the CPU, so that counting them does not wait for a GPU.
            num_targets += int((targets != IGNORE).sum())
    # `tolist` waits for the device. It reads all losses at the end, since reading one after each
    # batch would leave a GPU idle until the next batch is launched.
    return torch.stack(losses).tolist(), num_targets


def _can_use_threads(model: nn.Module, compute: Compute) -> bool:
    """Return whether several threads may call the model at the same time, each on one core.

    Code that torch has compiled is not called by several threads.
    """
    # `Module.compile` sets this attribute, and torch has no public one that tells the same.
    is_compiled = any(getattr(module, "_compiled_call_impl", None) for module in model.modules())
    return compute.device.type == "cpu" and torch.get_num_threads() > 1 and not is_compiled


def _losses_by_threads(
    model: nn.Module, batches: Iterator[Batch], compute: Compute, poll: Callable[[], None]
) -> tuple[list[float], int]:
    """Compute what `batch_losses` does, with each batch on a thread of its own.

    By default the threads of torch share the work of each operator, and wait for each other at its
    end. If another process uses one of the cores, all threads wait for the slowest at every
    operator, which can take many times as long as the computation.
    """
    num_threads = torch.get_num_threads()
    unfinished: deque[Future[float]] = deque()
    losses: list[float] = []
    num_targets = 0
    # Each worker sets torch's number of threads to 1 when it starts, and so computes alone. Threads
    # that start later would take over this number, so that it is restored at the end.
    workers = ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with eval_mode(model), workers:
            for inputs, targets in batches:
                poll()
                num_targets += int((targets != IGNORE).sum())
                unfinished.append(workers.submit(_loss_of_batch, model, inputs, targets, compute))
                # At most two batches for each thread are in memory: the one that it computes, and
                # the one that it begins next.
                if len(unfinished) == 2 * num_threads:
                    losses.append(unfinished.popleft().result())
            losses += [each.result() for each in unfinished]
    finally:
        torch.set_num_threads(num_threads)
    return losses, num_targets


@torch.no_grad()
def _loss_of_batch(model: nn.Module, inputs: Tensor, targets: Tensor, compute: Compute) -> float:
    return float(summed_loss(model, inputs, targets, compute))


def full_batches(tokens: Tokens, block_size: int, batch_size: int) -> Iterator[Batch]:
    """Yield a text in adjacent blocks, in which each token but the first is predicted once."""
    return sliding_batches(tokens, block_size, batch_size, stride=block_size)


def sliding_batches(
    tokens: Tokens, block_size: int, batch_size: int, stride: int
) -> Iterator[Batch]:
    """Yield windows that begin `stride` tokens apart, in batches.

    Each window predicts only the tokens after the end of the window before it. The first window
    predicts all of its tokens.
    """
    num_inputs = len(tokens) - 1  # the last token is only a target
    # Windows of the whole block size have the same shape, so that they can be batched. Those that
    # begin later than the last of them would reach beyond the inputs.
    num_whole = max(0, (num_inputs - block_size) // stride + 1)
    starts = range(0, num_whole * stride, stride)
    for first in range(0, num_whole, batch_size):
        yield _windows(tokens, starts[first : first + batch_size], block_size, num_scored=stride)
        release_pages(tokens)  # otherwise the pages of a long text would fill the memory
    # The window after the last whole one is shorter, and predicts the rest of the text, if any.
    last_start = num_whole * stride
    # The last whole window begins at `last_start - stride`. All targets up to its end are done.
    num_predicted = last_start - stride + block_size if num_whole > 0 else 0
    num_left = num_inputs - num_predicted
    if num_left > 0:
        yield _windows(tokens, [last_start], num_inputs - last_start, num_scored=num_left)


def _windows(tokens: Tokens, starts: Sequence[int], length: int, num_scored: int) -> Batch:
    """Return windows of `length` inputs as a batch, in which only the last targets are predicted.

    Each window predicts its last `num_scored` targets. The window at the beginning of the text
    predicts all of its targets, since no earlier window predicts them.
    """
    positions = np.array(starts)[:, None] + np.arange(length + 1)  # (B, T + 1)
    windows: Tensor = torch.from_numpy(tokens[positions].astype(np.int64))
    inputs = windows[:, :-1]
    # The targets are copied, since a view shares memory with the inputs, which must not change.
    targets = windows[:, 1:].clone()
    for row, start in enumerate(starts):
        if start > 0:
            targets[row, : length - num_scored] = IGNORE
    return inputs, targets
