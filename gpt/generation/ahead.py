"""A decoder that draws ahead: several tokens in one call, where the call itself costs more than a token."""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation.decoder import Drawn, describe, not_finite
from gpt.generation.native import NativeBackend
from gpt.native.decoding import NotFiniteError

PATIENCE = 0.03
"""Seconds that a reader of the stream may wait for tokens that are drawn but not shown."""
MOST_AHEAD = 64


class Uniforms:
    """The numbers in [0, 1) that decide a row's tokens, one after the other, from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._drawn: list[float] = []

    def peek(self, count: int) -> list[float]:
        """The next ones, which stay the next ones."""
        while len(self._drawn) < count:
            self._drawn += torch.rand(64, generator=self._generator).tolist()
        return self._drawn[:count]

    def take(self, count: int) -> list[float]:
        """The next ones, which are used up."""
        taken = self.peek(count)
        del self._drawn[:count]
        return taken


class AheadDecoder:
    """`BatchDecoder` for a backend that draws by itself; the tokens are the same.

    Each call draws twice as many as the one before, as far as that takes no longer than `PATIENCE`: the
    first token comes at once. What a row had drawn beyond its end is thrown away.

    Args:
        backend: not used before.
        prompts: token ids, at least one each.
        params: of all rows.
        seeds: one per row.

    Raises:
        GenerationError: a prompt is empty.
    """

    def __init__(
        self, backend: NativeBackend, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> None:
        if not all(len(prompt) for prompt in prompts):
            raise GenerationError("a prompt needs at least one token")
        self.active = list(range(len(prompts)))
        self._backend, self._params = backend, params
        self._contexts = [list(prompt) for prompt in prompts]
        self._goals = [len(prompt) + params.max_new_tokens for prompt in prompts]
        self._uniforms = [Uniforms(seed) for seed in seeds]
        self._queues: list[deque[Drawn]] = [deque() for _ in prompts]
        self._ahead = 1
        self._ready = 0  # tokens that every active row has in its queue

    @property
    def acceptance(self) -> float | None:
        return None

    @property
    def cache_bytes(self) -> int:
        return self._backend.cache_bytes

    def step(self) -> dict[int, Drawn]:
        """The next token of every active row.

        Raises:
            GenerationError: the model's logits are not finite.
        """
        if self._ready == 0:
            self._draw()
            self._ready = min(len(self._queues[row]) for row in self.active)
        self._ready -= 1
        return {row: self._queues[row].popleft() for row in self.active}

    def finish(self, rows: set[int]) -> None:
        """Draw no more for these rows."""
        keep = [place for place, row in enumerate(self.active) if row not in rows]
        if keep and len(keep) < len(self.active):
            self._backend.select(keep)
        self.active = [self.active[place] for place in keep]

    def _draw(self) -> None:
        contexts = [self._contexts[row] for row in self.active]
        left = max(self._goals[row] - len(self._contexts[row]) for row in self.active)
        steps = max(1, min(self._ahead, left, self._backend.room(contexts)))
        uniforms = torch.tensor([self._uniforms[row].take(steps) for row in self.active])
        start = time.perf_counter()
        try:
            drawn, logits = self._backend.draw(
                contexts, uniforms, self._params, self._seen(contexts), self._params.logprobs is not None
            )
        except NotFiniteError as error:
            raise not_finite(len(contexts[error.row]) - 1 + error.step) from None
        seconds = (time.perf_counter() - start) / steps
        self._ahead = max(1, min(2 * self._ahead, MOST_AHEAD, int(PATIENCE / max(seconds, 1e-9))))
        for context, tokens in zip(contexts, drawn, strict=True):
            context += tokens
        self._enqueue(drawn, logits)

    def _enqueue(self, drawn: list[list[int]], logits: Tensor | None) -> None:
        for step, tokens in enumerate(zip(*drawn, strict=True)):
            described = (
                map(Drawn, tokens)
                if logits is None
                else describe(logits[step], list(tokens), self._params.logprobs or 0)
            )
            for row, token in zip(self.active, described, strict=True):
                self._queues[row].append(token)

    def _seen(self, contexts: Sequence[Sequence[int]]) -> Tensor | None:
        """Which tokens each row has so far, for the repetition penalty; None where there is none."""
        if self._params.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(len(contexts), self._backend.vocab_size, dtype=torch.uint8)
        for row, context in zip(seen, contexts, strict=True):
            row[list(set(context))] = 1
        return seen
