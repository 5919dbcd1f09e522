"""The progress of a run: the counters in a checkpoint, and checks of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from gpt.config import TrainConfig
from gpt.system.distributed import World
from gpt.system.errors import CheckpointError

# The types of the fields are strict, since a damaged file may have "5" or True for a number. Counts
# are limited so that the sum of two counts fits into an int64.
Count = Annotated[int, Field(strict=True, ge=0, lt=2**62)]
CountOrNever = Annotated[int, Field(strict=True, ge=-1, lt=2**62)]
Loss = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


@dataclass
class TrainingState:
    """The progress of a run, saved as JSON.

    Attributes:
        step: number of optimizer steps that are done.
        evaluated_step: the step of the last finished evaluation; -1 before the first.
        val_loss: the validation loss of that evaluation, in nats per token.
        best_step: the step of the checkpoint with the lowest validation loss; -1 before the first.
        best_val_loss: the validation loss of that checkpoint.
        seconds: wall time of the run, over all the processes that have trained it.
    """

    step: Count = 0
    evaluated_step: CountOrNever = -1
    val_loss: Loss | None = None
    best_step: CountOrNever = -1
    best_val_loss: Loss | None = None
    seconds: Seconds = 0.0

    def record_evaluation(self, loss: float) -> bool:
        """Record the validation loss of the present step.

        Return whether it is lower than that of the best checkpoint.
        """
        self.evaluated_step = self.step
        self.val_loss = loss
        return self.best_val_loss is None or loss < self.best_val_loss

    def has_made_last_step(self, train: TrainConfig) -> bool:
        """Return whether no step is left to make.

        A stop rule of the configuration belongs here: the training loop, `gpt runs` and
        `train.teacher` all ask this method whether a run is finished.
        """
        return self.step >= train.max_steps

    def is_over(self, train: TrainConfig) -> bool:
        """Return whether the run has made its last step and evaluated it."""
        return self.has_made_last_step(train) and self.evaluated_step == self.step

    def as_best(self) -> "TrainingState":
        """Return this state with the checkpoint of the present step as the best one."""
        return replace(self, best_step=self.step, best_val_loss=self.val_loss)

    def without_best(self) -> "TrainingState":
        """Return this state without a best checkpoint, so that the next evaluation is the best."""
        return replace(self, best_step=-1, best_val_loss=None)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingState":
        """Build the state from a JSON object.

        Raises:
            CheckpointError: a key is missing, or its value has a wrong type.
        """
        # Every field has a default, which is its value in a new run. A state without a field would
        # silently get this value, so that missing fields are refused here.
        missing_fields = [name for name in cls.__dataclass_fields__ if name not in values]
        if missing_fields:
            raise CheckpointError(f"state.json of the checkpoint has no {missing_fields[0]!r}")
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            raise CheckpointError(
                f"state.json of the checkpoint: {problem['loc'][0]}: {problem['msg']}"
            ) from None


def check_like(name: str, value: Any, like: Tensor) -> None:
    """Raise ValueError unless a loaded value is a contiguous tensor with `like`'s shape and dtype.

    Kernels update the value in place without any check, and would write past its memory if it were
    smaller.
    """
    expected = f"{tuple(like.shape)} {like.dtype}"
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is {type(value).__name__}, expected {expected}")
    is_contiguous = value.layout == torch.strided and value.is_contiguous()
    is_alike = value.shape == like.shape and value.dtype == like.dtype
    if not is_contiguous or not is_alike:
        raise ValueError(f"{name} is {tuple(value.shape)} {value.dtype}, expected {expected}")


@dataclass
class Generators:
    """The states of torch's default generators in all processes, from which dropout draws.

    Attributes:
        reseed: called if saved states do not fit, since the run had another number of processes or
            another kind of device.
    """

    world: World
    device: torch.device
    reseed: Callable[[], None]

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states by rank."""
        cuda_states: list[Tensor] = []  # the state of the run's device, if it is a CUDA device
        if self.device.type == "cuda":
            cuda_states.append(torch.cuda.get_rng_state(self.device))
        return self.world.gather({"cpu": torch.get_rng_state(), "cuda": cuda_states})

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore the states of this process, or call `reseed`."""
        # The checkpoint may come from another number of processes or another kind of device.
        num_cuda_states = 1 if self.device.type == "cuda" else 0
        if len(states) != self.world.size or len(states[0]["cuda"]) != num_cuda_states:
            self.reseed()
            return
        own_states = states[self.world.rank]
        torch.set_rng_state(own_states["cpu"])
        for state in own_states["cuda"]:
            torch.cuda.set_rng_state(state, self.device)


def mix_seeds(*numbers: int) -> int:
    """Return a seed made from several numbers, such as a seed, a rank and a step.

    The numbers are hashed, since their sum would be the same for seed 1 in rank 0 and seed 0 in
    rank 1.
    """
    (state,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return int(state) >> 1  # 63 bits, so that the seed is not negative as an int64


def seed_process(*numbers: int) -> None:
    """Seed torch's default generators."""
    torch.manual_seed(mix_seeds(*numbers))
