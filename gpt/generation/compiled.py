"""A decode step of fixed shape: a CUDA graph, which costs one launch, or compiled by torch on a CPU."""

from collections.abc import Callable

import torch
from torch import Tensor

from gpt.cache import KVCache
from gpt.cache.fixed import FixedView
from gpt.generation.backends import CachedBackend
from gpt.model import GPT

Step = Callable[[], Tensor]
WARMUPS = 3
"""Runs before a capture, in which libraries take the memory they want."""


class CompiledBackend(CachedBackend):
    """`CachedBackend` with such a step; prompts are computed as they are there.

    Attention always sees the whole window, most of it behind a mask: that is the price of the fixed shape.
    """

    def __init__(
        self,
        model: GPT,
        slide_chunk: int | None = None,
        kv_dtype: str = "fp32",
        prefill_chunk: int | None = None,
    ) -> None:
        super().__init__(model, slide_chunk, kv_dtype, prefill_chunk)
        self._owner: KVCache | None = None

    def _step(self, cache: KVCache, newest: Tensor) -> Tensor:
        self.model.check(newest)
        if cache is not self._owner:  # rows came or went
            self._open(cache)
        self._tokens.copy_(newest)
        self._view.lengths.copy_(torch.tensor(cache.lengths))
        logits = self._run()
        cache.advance(1)
        return logits

    def _open(self, cache: KVCache) -> None:
        self._owner, self._view = cache, FixedView(cache)
        self._tokens = torch.zeros(len(cache.lengths), 1, dtype=torch.long, device=self.device)

        def step() -> Tensor:
            logits: Tensor = self.model(self._tokens, cache=self._view)
            return logits

        self._run = _captured(step) if self.device.type == "cuda" else torch.compile(step, dynamic=False)


def _captured(step: Step) -> Step:
    """A CUDA graph of a step; it gives the same tensor each time."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
