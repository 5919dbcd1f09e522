"""A decode step of fixed shape: a CUDA graph, which costs one launch, or compiled by torch on a CPU."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpt.cache import KVCache
from gpt.cache.fixed import FixedView
from gpt.generation.backends import TokenIds
from gpt.generation.backends.eager import CachedBackend

Step = Callable[[], Tensor]
WARMUPS = 3
"""Runs before a capture, in which libraries allocate their workspaces."""


class CompiledBackend(CachedBackend):
    """`CachedBackend` with such a step; prompts are computed as they are there.

    Attention always sees the whole window, most of it behind a mask: that is the price of the fixed shape.
    The batch has a fixed size too: sequences that finish are replaced by copies of the first one.
    """

    _run: Step | None = None

    def next_logits(self, sequences: Sequence[TokenIds]) -> Tensor:
        missing = len(self._starts) - len(sequences)
        return super().next_logits([*sequences, *[sequences[0]] * missing])[: len(sequences)]

    def select(self, indices: Sequence[int]) -> None:
        if self._cache is None or len(indices) > len(self._starts):
            self._run = None
            super().select(indices)
        else:
            chosen = [*indices, *[indices[0]] * (len(self._starts) - len(indices))]
            self._cache.assign(range(len(chosen)), self._cache.select(chosen))
            self._starts = [self._starts[index] for index in chosen]

    def _step(self, cache: KVCache, newest: Tensor) -> Tensor:
        self.model.check(newest)
        if self._run is None:
            self._view, self._tokens = FixedView(cache), torch.zeros_like(newest)
        self._tokens.copy_(newest)
        self._view.lengths.copy_(torch.tensor(cache.lengths), non_blocking=True)
        if self._run is None:  # now, since what a capture runs writes where the step will
            self._run = self._build()
        logits = self._run()
        cache.advance(1)
        return logits

    def _build(self) -> Step:
        def step() -> Tensor:
            logits: Tensor = self.model(self._tokens, cache=self._view)
            return logits

        return captured(step) if self.device.type == "cuda" else torch.compile(step, dynamic=False)


def captured(step: Step) -> Step:
    """Return a step replayed as a CUDA graph; it returns the same tensor each time."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
        logits = step()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
