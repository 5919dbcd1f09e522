"""The tokens of a sequence: which of them the model sees, and how the next one is sampled."""

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
"""The parameters that decide how a token is sampled; see `sampling_key`."""
NOT_SAMPLING_FIELDS = frozenset(
    {"max_new_tokens", "seed", "stop", "begin_id", "end_id", "overflow", "long_prompt"}
)
"""Parameters that say where a text begins and ends, and not how a token is sampled."""
UNIFORMS_AT_A_TIME = 64
"""Random numbers drawn in one call: to draw 64 takes about as long as to draw one."""


def sampling_key(params: SamplingParams) -> SamplingKey:
    """Return a key that is the same for sequences whose tokens can be sampled in one call."""
    fields = [name for name in type(params).model_fields if name not in NOT_SAMPLING_FIELDS]
    return params.ids, *(getattr(params, name) for name in fields)


class SampledToken(NamedTuple):
    """A token that was sampled.

    Log-probabilities are in nats, under the model's own distribution (temperature 1, no filter).

    Attributes:
        logprob: the log-probability of the token itself; None unless `params.logprobs` asks for it.
        top: the `params.logprobs` most likely tokens with their log-probabilities, best first.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class RandomStream:
    """The numbers in [0, 1), one for each token of a sequence, that decide what is sampled."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._buffer: list[float] = []

    def peek(self, count: int) -> list[float]:
        """Return the next numbers without using them up."""
        while len(self._buffer) < count:
            drawn = torch.rand(UNIFORMS_AT_A_TIME, generator=self._generator, dtype=torch.float32)
            self._buffer += drawn.tolist()
        return self._buffer[:count]

    def advance(self, count: int) -> None:
        """Use up the next numbers, which `peek` has returned before.

        A step may peek at more numbers than it uses: a sequence may end among its tokens.
        """
        del self._buffer[:count]


class KnownNumbers(RandomStream):
    """Random numbers that were drawn elsewhere."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._buffer = list(numbers)

    def peek(self, count: int) -> list[float]:
        assert count <= len(self._buffer)
        return self._buffer[:count]


@dataclass(frozen=True)
class Window:
    """The end of a sequence, which the model sees.

    It holds the whole sequence while that fits, and then moves in steps of `chunk` tokens. After a
    move all keys and values have to be computed again, since positions are counted from the
    beginning of the window; a larger step makes that rarer.
    """

    size: int

    @property
    def chunk(self) -> int:
        """Return how far the window moves: by a quarter of itself."""
        return max(1, self.size // 4)

    def start(self, length: int) -> int:
        """Return where the window begins in a sequence of `length` tokens."""
        if length <= self.size:
            return 0
        # The window has moved just often enough to hold the newest token: rounded up.
        moves = -(-(length - self.size) // self.chunk)
        return moves * self.chunk

    def of(self, sequence: Sequence[int]) -> Sequence[int]:
        return sequence[self.start(len(sequence)) :]


def sample_tokens(
    logits: Tensor, params: SamplingParams, sequences: Sequence[TokenIds], uniforms: Sequence[float]
) -> list[SampledToken | None]:
    """Sample the next token of each sequence from logits (B, V), each by one uniform number.

    Return None for a sequence whose logits are not finite.
    """
    probabilities = next_token_probabilities(logits, params, sequences)  # (B, V)
    sampled = sample(probabilities, torch.tensor(uniforms, dtype=torch.float32))  # (B,)
    is_finite = torch.isfinite(logits).all(dim=-1).to(sampled)  # (B,)
    # Reading from a device waits for it, so tokens and flags are read together, as one tensor. That
    # is why the flags were converted to the type of the tokens.
    ids, flags = torch.stack((sampled, is_finite)).tolist()
    described = to_sampled_tokens(ids, logits, params)
    # A token that was sampled from logits that are not finite is meaningless.
    return [token if flag else None for token, flag in zip(described, flags, strict=True)]


def to_sampled_tokens(
    ids: Sequence[int], logits: Tensor | None, params: SamplingParams
) -> list[SampledToken]:
    """Describe tokens that were sampled, one for each row of logits (B, V).

    With `params.logprobs` each gets its log-probability and the most likely alternatives, which
    reads the logits from their device.
    """
    if logits is None or params.logprobs is None:
        return [SampledToken(index) for index in ids]
    logprobs = logits.log_softmax(dim=-1).cpu()  # (B, V)
    # Ids that must not be sampled are not listed as alternatives. `params.ids` is the number of the
    # other ids; None means that all may be sampled.
    candidates = limit_ids(logprobs, params.ids)
    possible = params.ids or logprobs.size(-1)
    count = min(params.logprobs, logprobs.size(-1), possible)
    best = candidates.topk(count, dim=-1)
    ranked = zip(ids, logprobs, best.indices.tolist(), best.values.tolist(), strict=True)
    tokens = []
    for index, row, top_ids, top_logprobs in ranked:
        top = tuple(zip(top_ids, top_logprobs, strict=True))
        tokens.append(SampledToken(index, float(row[index]), top))
    return tokens


def check_finite(logits: Tensor, sequences: Sequence[TokenIds]) -> None:
    """Raise GenerationError, which names the position, unless logits (B, V) are finite."""
    finite = torch.isfinite(logits).all(dim=-1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise not_finite(len(sequences[row]) - 1)


def not_finite(position: int) -> GenerationError:
    """Return the error for logits that are not finite after a position of a sequence."""
    return GenerationError(
        f"the model's logits after position {position} are not finite; its weights may be corrupt"
    )
