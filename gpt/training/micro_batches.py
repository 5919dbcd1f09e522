"""The batches of a training, split into micro-batches and among processes."""

from typing import Any

import torch
from torch import Tensor

from gpt.config import TrainConfig
from gpt.data.batches import Sampler
from gpt.distributed import World
from gpt.evaluation.loss import Batch
from gpt.training.objective import TaughtBatch
from gpt.training.parallel import rows_of_process
from gpt.training.teacher import Teacher


class MicroBatches:
    """Reads this process's part of the micro-batches of each step.

    All of them are one large batch, split, so that neither accumulation nor processes change the data.

    Args:
        sampler: chooses the windows of a step.
        train: sizes of batches.
        world: the processes that share them.
        teacher: adds what it predicts, if the objective needs it.
    """

    def __init__(self, sampler: Sampler, train: TrainConfig, world: World, teacher: Teacher | None) -> None:
        self._sampler, self._teacher = sampler, teacher
        self._sequences = train.batch_size * train.grad_accum_steps
        self._size = train.batch_size // world.size
        self._rows = rows_of_process(train, world)

    @property
    def starts(self) -> Tensor:
        """Return the positions of the last step's windows, those of all processes: (B,) int64."""
        return self._sampler.starts

    def next(self) -> list[Batch] | list[TaughtBatch]:
        """Return the micro-batches of the next step."""
        inputs, targets = self._sampler.get_batch(self._sequences, self._rows)
        batches = list(zip(torch.split(inputs, self._size), torch.split(targets, self._size), strict=True))
        if self._teacher is None:
            return batches
        starts = self.starts if self._rows is None else self.starts[self._rows]
        return list(map(self._teacher.teach, batches, torch.split(starts, self._size)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence of batches."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was called.

        Raises:
            ValueError: the state is of another order.
        """
        self._sampler.load_state_dict(state)
