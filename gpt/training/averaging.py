"""A moving average of the weights, which often predicts better than the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gpt.training.state import check_like


class WeightAverage:
    """Exponential moving average (Polyak and Juditsky 1992), short at first and longer as steps go on.

    Args:
        model: whose weights are averaged; they are not touched outside `applied`.
        decay: of the average; in step t it is at most (1 + t) / (10 + t).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = dict(model.named_parameters())
        self._decay = decay
        self._average = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self._average.values()), list(self._weights.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside this context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights themselves: it is the average that a checkpoint has as its model."""
        return {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take the model's present weights for the average, and give it those of the state.

        Raises:
            KeyError, ValueError: the state is of another model, or of a run without an average.
        """
        for name, weight in self._weights.items():
            check_like(name, state[name], weight)
        for name, weight in self._weights.items():
            self._average[name].copy_(weight)
            weight.copy_(state[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self._weights.items():
            own = weight.clone()
            weight.copy_(self._average[name])
            self._average[name].copy_(own)
