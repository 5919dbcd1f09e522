"""The decoding loops over a batch, in PyTorch and in the native engine; every sequence has its own generator."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation.backends import Backend, TokenIds
from gpt.generation.backends.native import NativeBackend
from gpt.generation.sampling import limit_ids, next_token_probabilities, sample
from gpt.kernels.decoding.engine import NotFiniteError

PATIENCE = 0.03
"""Seconds that a reader of the stream may wait for tokens that are sampled but not shown."""
MAX_STEPS = 64


class SampledToken(NamedTuple):
    """A token that was sampled.

    Attributes:
        id: token id.
        logprob: log-probability, in nats, under the model's own distribution (temperature 1, no
            filter); None unless `params.logprobs` asks for it.
        top: the most likely tokens and their log-probabilities, `params.logprobs` of them.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Decoder(ABC):
    """Samples tokens for a batch of sequences.

    Attributes:
        active: indices, in `prompts`, of the sequences that are not finished.

    Args:
        backend: computes the logits; not used before.
        prompts: token ids, at least one each.
        params: sampling parameters of all sequences.

    Raises:
        GenerationError: a prompt is empty.
    """

    def __init__(self, backend: Backend, prompts: Sequence[TokenIds], params: SamplingParams) -> None:
        if not all(len(prompt) for prompt in prompts):
            raise GenerationError("a prompt needs at least one token")
        self.active = list(range(len(prompts)))
        self._backend, self._params = backend, params
        self._sequences = [list(prompt) for prompt in prompts]

    @abstractmethod
    def step(self) -> dict[int, SampledToken]:
        """Return the next token of every active sequence, by its index.

        Raises:
            GenerationError: the model's logits are not finite.
        """

    @torch.inference_mode()  # as `step`, whose tensors a backend may rearrange in place
    def finish(self, indices: Collection[int]) -> None:
        """Stop sampling for these sequences."""
        keep = [row for row, index in enumerate(self.active) if index not in indices]
        if keep and len(keep) < len(self.active):
            self._backend.select(keep)
        self.active = [self.active[row] for row in keep]

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of keys and values allocated now."""
        return self._backend.cache_bytes

    @property
    def acceptance(self) -> float | None:
        """Return the share of draft tokens that were accepted; None without drafts."""
        return None


class StepDecoder(Decoder):
    """Samples one token after another, in PyTorch.

    The tokens of a sequence depend on its prompt, the parameters and its seed, not on the rest of the batch.

    Args:
        backend: computes the logits; not used before.
        prompts: token ids, at least one each.
        params: sampling parameters of all sequences.
        seeds: one per sequence.
    """

    def __init__(
        self, backend: Backend, prompts: Sequence[TokenIds], params: SamplingParams, seeds: Sequence[int]
    ) -> None:
        super().__init__(backend, prompts, params)
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    @torch.inference_mode()
    def step(self) -> dict[int, SampledToken]:
        sequences = [self._sequences[index] for index in self.active]
        logits = self._backend.next_logits(sequences)  # (B, V)
        probabilities = next_token_probabilities(logits, self._params, sequences)
        generators = (self._generators[index] for index in self.active)
        uniform = torch.cat([torch.rand(1, generator=generator, dtype=torch.float32) for generator in generators])
        sampled = sample(probabilities, uniform)
        # reading back waits for the device, so it is done once
        finite_rows = torch.isfinite(logits).all(dim=-1).to(sampled)
        tokens, finite = torch.stack((sampled, finite_rows)).tolist()
        if not all(finite):
            raise not_finite(len(sequences[finite.index(0)]) - 1)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        return dict(zip(self.active, describe(tokens, logits, self._params), strict=True))


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
        params: sampling parameters of all sequences.
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
        self._steps = max(1, min(2 * self._steps, MAX_STEPS, int(PATIENCE / max(seconds, 1e-9))))
        for index, sequence, tokens in zip(self.active, sequences, sampled, strict=True):
            self._random[index].advance(len(tokens))
            sequence += tokens
        for step, newest in enumerate(zip(*sampled, strict=True)):
            described = describe(newest, None if logits is None else logits[step], self._params)
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


def describe(tokens: Sequence[int], logits: Tensor | None, params: SamplingParams) -> list[SampledToken]:
    """Return sampled tokens, with their log-probabilities where these are asked for.

    Args:
        tokens: B ids.
        logits: (B, V) that each was sampled from; None only where `params.logprobs` is.
        params: `logprobs` is the number of most likely tokens to list beside each, of those that may be sampled; None:
            the tokens alone.
    """
    if logits is None or params.logprobs is None:
        return list(map(SampledToken, tokens))
    logprobs = logits.log_softmax(dim=-1).cpu()
    most = min(params.logprobs, logprobs.size(-1), params.ids or logprobs.size(-1))
    best = limit_ids(logprobs, params.ids).topk(most, dim=-1)
    tops = [
        tuple(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [
        SampledToken(token, float(logprobs[row, token]), top)
        for row, (token, top) in enumerate(zip(tokens, tops, strict=True))
    ]


def check_finite(logits: Tensor, sequences: Sequence[TokenIds]) -> None:
    """Check that the logits (B, V) after some sequences can be sampled from.

    Raises:
        GenerationError: they cannot; the message names the position.
    """
    finite = torch.isfinite(logits).all(dim=-1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise not_finite(len(sequences[row]) - 1)


def not_finite(position: int) -> GenerationError:
    """Return the error for logits after some position of a sequence."""
    return GenerationError(f"the model's logits after position {position} are not finite; its weights are damaged")
