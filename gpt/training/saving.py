"""Write the checkpoints of a run, in rank 0."""

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.checkpoint import Checkpoint, RunFolder
from gpt.config import Config
from gpt.data import Dataset
from gpt.data.ngrams import NgramTable
from gpt.distributed import World
from gpt.errors import CheckpointError, NonFiniteError
from gpt.plugins import used_plugins
from gpt.progress import Report
from gpt.training.training_state import TrainingState


class CheckpointWriter:
    """Writes checkpoints into a run folder.

    Args:
        dataset: its tokenizer and, if wanted, a table of its n-grams are in every checkpoint.
        world: the processes; only rank 0 writes, and the others wait.
        report: takes a line for every checkpoint that could not be written.
    """

    def __init__(self, config: Config, dataset: Dataset, run: RunFolder, world: World, report: Report) -> None:
        self._config, self._dataset, self._run = config, dataset, run
        self._world, self._report = world, report
        self._failed = 0

    def write(
        self, weights: dict[str, Tensor], training: dict[str, Any], state: TrainingState, best: bool, required: bool
    ) -> Path | None:
        """Write a checkpoint; return its folder, in all processes; None: that failed.

        Args:
            weights: by name, in rank 0.
            training: all else that training needs, in rank 0.
            state: the progress of the run.
            best: whether it is the best checkpoint so far.
            required: raise an error on failure instead of reporting it.

        Raises:
            CheckpointError: it is required and could not be written; the others get a PeerError.
            NonFiniteError: a weight is not finite.
        """

        def write_files() -> Path | None:
            _check_finite(weights, state.step)
            plugins = used_plugins(self._config)
            values = {**asdict(state), "data": self._dataset.fingerprint, **({"plugins": plugins} if plugins else {})}
            checkpoint = Checkpoint(weights, training, values, self._config, self._dataset.tokenizer, self._ngrams)
            try:
                return self._run.save(checkpoint, best, self._config.train.keep_last)
            except CheckpointError as error:
                if required:
                    raise
                self._failed += 1
                self._report(
                    f"warning: {error}; training continues, and the last checkpoint is kept ({self._failed} failed)"
                )
                return None

        return self._world.rank_zero(write_files)

    @cached_property
    def _ngrams(self) -> NgramTable | None:
        if not self._config.train.ngrams:
            return None
        return NgramTable.learn(self._dataset.train, self._dataset.tokenizer.vocab_size)


def _check_finite(weights: dict[str, Tensor], step: int) -> None:
    """Raise unless all weights are finite: the loss may be so even if one is not, as where it is multiplied by 0."""
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise NonFiniteError(f"the weights {name} are not finite at step {step}; nothing was saved")
