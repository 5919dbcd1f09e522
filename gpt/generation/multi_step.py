"""A decoder that draws ahead: several tokens in one call, where the call itself costs more than a token."""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends.native import NativeBackend
from gpt.generation.decoder import BatchDecoder, SampledToken, describe, not_finite
from gpt.kernels.decoding.engine import NotFiniteError

PATIENCE = 0.03
"""Seconds that a reader of the stream may wait for tokens that are sampled but not shown."""
MOST_AHEAD = 64


class RandomStream:
    """The numbers in [0, 1) that decide a row's tokens, one after the other, from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._buffer: list[float] = []

    def peek(self, count: int) -> list[float]:
        """The next ones, which stay the next ones."""
        while len(self._buffer) < count:
            self._buffer += torch.rand(64, generator=self._generator, dtype=torch.float32).tolist()
        return self._buffer[:count]

    def take(self, count: int) -> list[float]:
        """The next ones, which are used up."""
        taken = self.peek(count)
        del self._buffer[:count]
        return taken


class MultiStepDecoder(BatchDecoder):
    """`StepDecoder` for a backend that draws by itself; the tokens are the same.

    Each call draws twice as many as the one before, as far as that takes no longer than `PATIENCE`: the
    first token comes at once. What a row had sampled beyond its end is thrown away.

    Args:
        backend: not used before.
        prompts: token ids, at least one each.
        params: of all rows.
        seeds: one per row.

    Raises:
        GenerationError: a prompt is empty.
    """

    _backend: NativeBackend

    def __init__(
        self, backend: NativeBackend, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> None:
        super().__init__(backend, prompts, params)
        self._goals = [len(prompt) + params.max_new_tokens for prompt in prompts]
        self._uniforms = [RandomStream(seed) for seed in seeds]
        self._queues: list[deque[SampledToken]] = [deque() for _ in prompts]
        self._ahead = 1

    def step(self) -> dict[int, SampledToken]:
        """The next token of every active row.

        Raises:
            GenerationError: the model's logits are not finite.
        """
        if not all(self._queues[row] for row in self.active):
            self._extend()
        return {row: self._queues[row].popleft() for row in self.active}

    def _extend(self) -> None:
        """Put at least one more token into the queue of every active row."""
        contexts = [self._contexts[row] for row in self.active]
        left = max(self._goals[row] - len(self._contexts[row]) for row in self.active)
        steps = max(1, min(self._ahead, left, self._backend.room(contexts)))
        start = time.perf_counter()
        sampled, logits = self._generate_finite(contexts, steps)
        seconds = (time.perf_counter() - start) / len(sampled[0])
        self._ahead = max(1, min(2 * self._ahead, MOST_AHEAD, int(PATIENCE / max(seconds, 1e-9))))
        for row, context, tokens in zip(self.active, contexts, sampled, strict=True):
            self._uniforms[row].take(len(tokens))
            context += tokens
        self._enqueue(sampled, logits)

    def _generate_finite(self, contexts: Sequence[Sequence[int]], steps: int) -> tuple[list[list[int]], Tensor | None]:
        """Some tokens for every row, fewer where the logits after them are not finite: nobody may ask for those.

        Raises:
            GenerationError: they are not finite after a context.
        """
        uniforms = torch.tensor([self._uniforms[row].peek(steps) for row in self.active], dtype=torch.float32)
        keep_logits = self._params.logprobs is not None
        try:
            return self._backend.generate(contexts, uniforms, self._params, self._seen(contexts), keep_logits)
        except NotFiniteError as error:
            if error.step == 0:
                raise not_finite(len(contexts[error.row]) - 1) from None
            return self._generate_finite(contexts, error.step)

    def _enqueue(self, sampled: list[list[int]], logits: Tensor | None) -> None:
        for step, tokens in enumerate(zip(*sampled, strict=True)):
            described = describe(tokens, None if logits is None else logits[step], self._params.logprobs)
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
