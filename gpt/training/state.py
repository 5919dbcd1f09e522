"""How far a run is: the counters that a checkpoint keeps beside the tensors."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from gpt.errors import CheckpointError


@dataclass
class TrainingState:
    """Plain numbers, saved as JSON.

    Attributes:
        step: optimizer steps done.
        evaluated_step: step of the last finished evaluation; -1 before the first.
        val_loss: its result, in nats per token.
        best_step: step of the lowest validation loss so far; -1 before the first.
        best_val_loss: that loss.
        evaluations_since_best: for early stopping.
        seconds: wall time spent training, over all resumes.
    """

    step: int = 0
    evaluated_step: int = -1
    val_loss: float | None = None
    best_step: int = -1
    best_val_loss: float | None = None
    evaluations_since_best: int = 0
    seconds: float = 0.0

    def record_evaluation(self, loss: float) -> bool:
        """Note the loss of the present step; returns whether it is the best so far."""
        self.evaluated_step, self.val_loss = self.step, loss
        better = self.best_val_loss is None or loss < self.best_val_loss
        if better:
            self.best_step, self.best_val_loss, self.evaluations_since_best = self.step, loss, 0
        else:
            self.evaluations_since_best += 1
        return better

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingState":
        """From what `to_dict` gave; other keys are left alone.

        Raises:
            CheckpointError: a key is missing.
        """
        try:
            return cls(**{name: values[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise CheckpointError(f"state.json of the checkpoint has no {error}") from None


def default_generator_states() -> dict[str, Any]:
    """States of torch's own generators, which dropout draws from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_default_generator_states(states: dict[str, Any]) -> None:
    """Restore what `default_generator_states` gave, as far as the devices are there."""
    torch.set_rng_state(states["cpu"])
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
