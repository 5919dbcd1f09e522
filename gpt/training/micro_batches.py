"""The batches of a training, split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt.evaluation.loss import Batch
from gpt.training.objective import StepBatch

if TYPE_CHECKING:  # whoever builds them chooses the sampler
    from gpt.data.batches import Sampler


@dataclass(repr=False)
class MicroBatches:
    """Reads the micro-batches of each step: one large batch, split, so that accumulation does not change the data.

    Attributes:
        size: sequences of a micro-batch.
        rows: those of a step that are read, (R,) int64; None: all.
        complete: adds what the objective reads to a micro-batch, whose windows begin at the given positions.
    """

    sampler: Sampler
    sequences: int
    size: int
    rows: Tensor | None = None
    complete: Callable[[Batch, Tensor], StepBatch] | None = None

    def next(self, length: int) -> list[StepBatch]:
        """Read the micro-batches of a step, whose windows are cut into sequences of so many tokens."""
        inputs, targets = self.sampler.get_batch(self.sequences, self.rows)
        starts = self.sampler.starts if self.rows is None else self.sampler.starts[self.rows]
        parts = zip(*(torch.split(tensor, self.size) for tensor in (inputs, targets, starts)), strict=True)
        complete = self.complete or (lambda batch, _: batch)
        return [_cut(complete((inputs, targets), starts), length) for inputs, targets, starts in parts]

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was called; ValueError: the state is of another order."""
        self.sampler.load_state_dict(state)


def _cut(batch: StepBatch, length: int) -> StepBatch:
    """Cut windows along time, tensors (B, T, ...), into sequences: (B T / length, length, ...)."""
    return tuple(tensor.reshape(-1, length, *tensor.shape[2:]) for tensor in batch)
