"""Write the checkpoints of a run, in rank 0."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.checkpoint import Checkpoint, RunFolder
from gpt.config import Config
from gpt.data.dataset import Dataset
from gpt.distributed import World
from gpt.errors import CheckpointError, NonFiniteError
from gpt.plugins import used_plugins
from gpt.progress import Report
from gpt.training.training_state import TrainingState


@dataclass(repr=False)
class CheckpointWriter:
    """Writes checkpoints into a run folder, with the tokenizer of a dataset."""

    config: Config
    dataset: Dataset
    run: RunFolder
    world: World
    report: Report
    failed: int = 0

    def write(
        self, weights: dict[str, Tensor], training: dict[str, Any], state: TrainingState, best: bool, required: bool
    ) -> Path | None:
        """Write a checkpoint from rank 0; return its folder, in all processes; None: that failed, and was reported.

        Raises:
            CheckpointError: it is `required` and could not be written; the others get a PeerError.
            NonFiniteError: a weight is not finite.
        """

        def write_files() -> Path | None:
            for name, weight in weights.items():
                # the loss may be finite even if one is not, as where it is multiplied by 0
                if not bool(torch.isfinite(weight).all()):
                    raise NonFiniteError(f"the weights {name} are not finite at step {state.step}; nothing was saved")
            plugins = used_plugins(self.config)
            values = {**asdict(state), "data": self.dataset.fingerprint, **({"plugins": plugins} if plugins else {})}
            checkpoint = Checkpoint(weights, training, values, self.config, self.dataset.tokenizer)
            try:
                return self.run.save(checkpoint, best, self.config.train.keep_last)
            except CheckpointError as error:
                if required:
                    raise
                self.failed += 1
                self.report(
                    f"warning: {error}; training continues, and the last checkpoint is kept ({self.failed} failed)"
                )
                return None

        return self.world.rank_zero(write_files)
