"""The tokens of a sequence: which the model sees, and the next one, sampled from each row of logits by PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.sampling import limit_ids, next_token_probabilities, sample
from gpt.system.errors import GenerationError

TokenIds = Sequence[int]
"""All tokens of a sequence so far, including the prompt; at least one."""
SamplingKey = tuple[Any, ...]
NOT_SAMPLING_FIELDS = frozenset({"max_new_tokens", "seed", "stop", "end_id", "overflow", "long_prompt"})
"""Parameters that say where a text begins and ends, and not how a token is sampled."""


def sampling_key(params: SamplingParams) -> SamplingKey:
    """Return what is equal for parameters by which a token is sampled and described in the same way."""
    return params.ids, *(getattr(params, name) for name in type(params).model_fields if name not in NOT_SAMPLING_FIELDS)


class SampledToken(NamedTuple):
    """A token that was sampled, and the most likely ones, `params.logprobs` of them; without that no log-probabilities.

    These are in nats, under the model's own distribution (temperature 1, no filter).
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


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


@dataclass(frozen=True)
class Window:
    """The end of a sequence, which the model sees.

    It holds the whole sequence while that fits, and then moves in steps of `chunk`, a quarter of it, so that a cache
    has to be filled anew once in `chunk` tokens and not at every one.
    """

    size: int

    @property
    def chunk(self) -> int:
        return max(1, self.size // 4)

    def start(self, length: int) -> int:
        """Return where it begins in a sequence of `length` tokens."""
        if length <= self.size:
            return 0
        steps = -(-(length - self.size) // self.chunk)
        return steps * self.chunk

    def of(self, sequence: Sequence[int]) -> Sequence[int]:
        return sequence[self.start(len(sequence)) :]


def sample_tokens(
    logits: Tensor, params: SamplingParams, sequences: Sequence[TokenIds], uniforms: Sequence[float]
) -> list[SampledToken | None]:
    """Sample the next token of each sequence from logits (B, V) by one uniform; None where they are not finite."""
    probabilities = next_token_probabilities(logits, params, sequences)
    sampled = sample(probabilities, torch.tensor(uniforms, dtype=torch.float32))
    # reading back waits for the device, so it is done once
    finite = torch.isfinite(logits).all(dim=-1).to(sampled)
    tokens, are_finite = torch.stack((sampled, finite)).tolist()
    described = to_sampled_tokens(tokens, logits, params)
    return [token if is_finite else None for token, is_finite in zip(described, are_finite, strict=True)]


def to_sampled_tokens(tokens: Sequence[int], logits: Tensor | None, params: SamplingParams) -> list[SampledToken]:
    """Return tokens; with `params.logprobs`, their log-probabilities by logits (B, V), and so many likely ones each."""
    if logits is None or params.logprobs is None:
        return list(map(SampledToken, tokens))
    logprobs = logits.log_softmax(dim=-1).cpu()
    most = min(params.logprobs, logprobs.size(-1), params.ids or logprobs.size(-1))
    best = limit_ids(logprobs, params.ids).topk(most, dim=-1)
    ranked = zip(tokens, logprobs, best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        SampledToken(token, float(row[token]), tuple(zip(ids, values, strict=True)))
        for token, row, ids, values in ranked
    ]


def check_finite(logits: Tensor, sequences: Sequence[TokenIds]) -> None:
    """Raise GenerationError, which names the position, unless logits (B, V) after some sequences are finite."""
    finite = torch.isfinite(logits).all(dim=-1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise not_finite(len(sequences[row]) - 1)


def not_finite(position: int) -> GenerationError:
    """Return the error for logits after some position of a sequence."""
    return GenerationError(f"the model's logits after position {position} are not finite; its weights are damaged")
