"""A moving average of the weights, which often predicts better than the weights of the last step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gpt.distributed.sharding import shard_like, to_local
from gpt.training.training_state import check_like


class WeightAverage:
    """Keep an exponential moving average of a model's weights (Polyak and Juditsky 1992).

    Args:
        model: its weights change only inside `applied` and in `load_state_dict`.
        decay: weight of the old average; at most (1 + t) / (10 + t) in step t, so that it is short at first.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = dict(model.named_parameters())
        self._decay = decay
        self._average = {name: to_local(weight.detach()).clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self._average.values()), self._local_weights(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights before averaging; the model in a checkpoint has the average."""
        return {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the model's present weights as the average, and copy those of the state into the model."""
        for name, weight in self._weights.items():
            check_like(name, state[name], weight)  # all of them before any is changed
        for name, weight in self._weights.items():
            self._average[name].copy_(to_local(weight))
            weight.copy_(shard_like(state[name], weight))

    def _local_weights(self) -> list[Tensor]:
        return [to_local(weight) for weight in self._weights.values()]

    @torch.no_grad()
    def _swap(self) -> None:
        for average, weight in zip(self._average.values(), self._local_weights(), strict=True):
            own = weight.clone()
            weight.copy_(average)
            average.copy_(own)
