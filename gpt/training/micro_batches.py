"""The batches of a training, split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpt.evaluation.loss import Batch
from gpt.training.objective import StepBatch

if TYPE_CHECKING:  # whoever builds them chooses the sampler
    from gpt.data.batches import Sampler


class MicroBatches:
    """Reads the micro-batches of each step: one large batch, split, so that accumulation does not change the data.

    Args:
        sampler: chooses the windows of a step.
        size: sequences of a micro-batch.
        rows: those of a step that are read, (R,) int64; None: all.
        complete: adds what the objective reads to a micro-batch, whose windows begin at the given positions.
    """

    def __init__(
        self,
        sampler: Sampler,
        sequences: int,
        size: int,
        rows: Tensor | None = None,
        complete: Callable[[Batch, Tensor], StepBatch] = lambda batch, starts: batch,
    ) -> None:
        self._sampler, self._sequences, self._size = sampler, sequences, size
        self._rows, self._complete = rows, complete

    @property
    def starts(self) -> Tensor:
        """Return the positions of the last step's windows, in all processes: (B,) int64."""
        return self._sampler.starts

    def next(self) -> list[StepBatch]:
        """Return the micro-batches of the next step."""
        inputs, targets = self._sampler.get_batch(self._sequences, self._rows)
        starts = self.starts if self._rows is None else self.starts[self._rows]
        parts = zip(*(torch.split(tensor, self._size) for tensor in (inputs, targets, starts)), strict=True)
        return [self._complete((inputs, targets), starts) for inputs, targets, starts in parts]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence of batches."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was called.

        Raises:
            ValueError: the state is of another order.
        """
        self._sampler.load_state_dict(state)
