"""A runtime whose logits are written down."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends import Backend
from gpt.generation.backends.selection import DecodeOptions, EagerRuntime
from tiny import sharp_model


class Scripted:
    """A backend whose logits are a function of the tokens so far; notes the rows it is asked for."""

    cache_bytes = 0

    def __init__(self, logits: Callable[[Sequence[int]], list[float]]) -> None:
        self._logits = logits
        self.selected: list[list[int]] = []

    def next_logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([self._logits(sequence) for sequence in sequences])

    def select(self, indices: Sequence[int]) -> None:
        self.selected.append(list(indices))


class ScriptedRuntime(EagerRuntime):
    """Decodes by a given backend."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(sharp_model(), DecodeOptions("eager"))
        self._given = backend

    def backend(self, params: SamplingParams) -> Backend:
        return self._given
