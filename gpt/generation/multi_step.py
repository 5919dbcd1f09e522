"""Multi-step decoding: several tokens in one call of the native engine, where a call costs more than a token."""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.backends import TokenIds
from gpt.generation.backends.native import NativeBackend
from gpt.generation.decoder import Decoder, SampledToken, describe, not_finite
from gpt.kernels.decoding.engine import NotFiniteError

PATIENCE = 0.03
"""Seconds that a reader of the stream may wait for tokens that are sampled but not shown."""
MOST_STEPS = 64


class RandomStream:
    """The numbers in [0, 1) that decide the tokens of a sequence, one each, from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._buffer: list[float] = []

    def peek(self, count: int) -> list[float]:
        """Return the next numbers without using them up."""
        while len(self._buffer) < count:
            self._buffer += torch.rand(64, generator=self._generator, dtype=torch.float32).tolist()
        return self._buffer[:count]

    def advance(self, count: int) -> None:
        """Use up the next numbers, which `peek` returned before."""
        del self._buffer[:count]


class MultiStepDecoder(Decoder):
    """`StepDecoder` for a backend that samples by itself; the tokens are the same.

    Each call samples twice as many as the one before, as long as that takes no longer than `PATIENCE`: the
    first token comes at once. Tokens that were sampled beyond the end of a sequence are dropped.

    Args:
        backend: not used before.
        prompts: token ids, at least one each.
        params: of all sequences.
        seeds: one per sequence.

    Raises:
        GenerationError: a prompt is empty.
    """

    _backend: NativeBackend

    def __init__(
        self, backend: NativeBackend, prompts: Sequence[TokenIds], params: SamplingParams, seeds: Sequence[int]
    ) -> None:
        super().__init__(backend, prompts, params)
        self._final_lengths = [len(prompt) + params.max_new_tokens for prompt in prompts]
        self._random = [RandomStream(seed) for seed in seeds]
        self._queues: list[deque[SampledToken]] = [deque() for _ in prompts]
        self._steps = 1

    def step(self) -> dict[int, SampledToken]:
        if not all(self._queues[index] for index in self.active):
            self._refill()
        return {index: self._queues[index].popleft() for index in self.active}

    def _refill(self) -> None:
        """Put at least one more token into the queue of every active sequence."""
        sequences = [self._sequences[index] for index in self.active]
        left = max(self._final_lengths[index] - len(self._sequences[index]) for index in self.active)
        steps = max(1, min(self._steps, left, self._backend.room(sequences)))
        start = time.perf_counter()
        sampled, logits = self._generate(sequences, steps)
        seconds = (time.perf_counter() - start) / len(sampled[0])
        self._steps = max(1, min(2 * self._steps, MOST_STEPS, int(PATIENCE / max(seconds, 1e-9))))
        for index, sequence, tokens in zip(self.active, sequences, sampled, strict=True):
            self._random[index].advance(len(tokens))
            sequence += tokens
        for step, newest in enumerate(zip(*sampled, strict=True)):
            described = describe(newest, None if logits is None else logits[step], self._params.logprobs)
            for index, token in zip(self.active, described, strict=True):
                self._queues[index].append(token)

    def _generate(self, sequences: Sequence[TokenIds], steps: int) -> tuple[list[list[int]], Tensor | None]:
        """Sample tokens for every sequence, fewer where the logits after them are not finite: they may not be needed.

        Raises:
            GenerationError: they are not finite after a given sequence.
        """
        uniforms = torch.tensor([self._random[index].peek(steps) for index in self.active], dtype=torch.float32)
        keep_logits = self._params.logprobs is not None
        try:
            return self._backend.generate(sequences, uniforms, self._params, self._seen(sequences), keep_logits)
        except NotFiniteError as error:
            if error.step == 0:
                raise not_finite(len(sequences[error.row]) - 1) from None
            return self._generate(sequences, error.step)

    def _seen(self, sequences: Sequence[TokenIds]) -> Tensor | None:
        """Return which tokens each sequence has, (B, V), for the repetition penalty; None where there is none."""
        if self._params.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(len(sequences), self._backend.vocab_size, dtype=torch.uint8)
        for row, sequence in zip(seen, sequences, strict=True):
            row[list(set(sequence))] = 1
        return seen
