"""The decoding loop over a batch: logits, distribution, sample, append; every row with its own generator."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation.backends import Backend
from gpt.generation.sampling import next_token_probabilities, sample


class SampledToken(NamedTuple):
    """A token that was sampled.

    Attributes:
        id: of the token.
        logprob: log-probability, in nats, under the model's own distribution (temperature 1, no
            filter); None unless `params.logprobs` asks for it.
        top: the most likely tokens and their log-probabilities, `params.logprobs` of them.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Decoder(Protocol):
    """Draws tokens for several rows.

    Attributes:
        active: rows that still sample, by their number among the prompts.
    """

    active: list[int]

    def step(self) -> dict[int, SampledToken]:
        """The next token of every active row."""
        ...

    def finish(self, rows: set[int]) -> None:
        """Draw no more for these rows."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held now."""
        ...

    @property
    def acceptance(self) -> float | None:
        """Share of guessed tokens that stood; None where none were guessed."""
        ...


class BatchDecoder:
    """Rows that grow, by whatever draws their tokens.

    Attributes:
        active: rows that still sample, by their number in `prompts`.

    Args:
        backend: gives the logits; not used before.
        prompts: token ids, at least one each.
        params: of all rows.

    Raises:
        GenerationError: a prompt is empty.
    """

    def __init__(self, backend: Backend, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        if not all(len(prompt) for prompt in prompts):
            raise GenerationError("a prompt needs at least one token")
        self.active = list(range(len(prompts)))
        self._backend, self._params = backend, params
        self._contexts = [list(prompt) for prompt in prompts]

    @property
    def cache_bytes(self) -> int:
        return self._backend.cache_bytes

    @property
    def acceptance(self) -> float | None:
        return None

    def finish(self, rows: set[int]) -> None:
        """Draw no more for these rows."""
        keep = [place for place, row in enumerate(self.active) if row not in rows]
        if keep and len(keep) < len(self.active):
            self._backend.select(keep)
        self.active = [self.active[place] for place in keep]


class StepDecoder(BatchDecoder):
    """Draws one token after another for every active row.

    A row's tokens depend on its prompt, the parameters and its seed, not on the other rows.

    Args:
        backend: as for `BatchDecoder`.
        prompts: as for `BatchDecoder`.
        params: as for `BatchDecoder`.
        seeds: one per row.

    Raises:
        GenerationError: a prompt is empty.
    """

    def __init__(
        self, backend: Backend, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> None:
        super().__init__(backend, prompts, params)
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    @torch.inference_mode()
    def step(self) -> dict[int, SampledToken]:
        """Draw the next token of every active row.

        Raises:
            GenerationError: the model's logits are not finite.
        """
        contexts = [self._contexts[row] for row in self.active]
        logits = self._backend.next_logits(contexts)  # (B, V)
        probabilities = next_token_probabilities(logits, self._params, contexts)
        uniform = torch.cat([torch.rand(1, generator=self._generators[row]) for row in self.active])
        sampled = sample(probabilities, uniform)
        # what is read back waits for the device, so it is read once
        tokens, finite = torch.stack((sampled, torch.isfinite(logits).all(dim=-1).long())).tolist()
        if not all(finite):
            raise not_finite(len(contexts[finite.index(0)]) - 1)
        for context, token in zip(contexts, tokens, strict=True):
            context.append(token)
        return dict(zip(self.active, describe(tokens, logits, self._params.logprobs), strict=True))


def describe(tokens: Sequence[int], logits: Tensor | None, count: int | None) -> list[SampledToken]:
    """SampledToken tokens, with their log-probabilities where these are wanted.

    Args:
        tokens: B ids.
        logits: (B, V) that each was sampled from; None only where `count` is.
        count: of the most likely tokens beside each; None: the tokens alone.
    """
    if logits is None or count is None:
        return list(map(SampledToken, tokens))
    logprobs = logits.log_softmax(dim=-1).cpu()
    best = logprobs.topk(min(count, logprobs.size(-1)), dim=-1)
    tops = [
        tuple(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [
        SampledToken(token, float(logprobs[row, token]), top)
        for row, (token, top) in enumerate(zip(tokens, tops, strict=True))
    ]


def check_finite(logits: Tensor, contexts: Sequence[Sequence[int]]) -> None:
    """Make sure that the logits (B, V) after some contexts can be sampled from.

    Raises:
        GenerationError: they cannot; the message names the position.
    """
    finite = torch.isfinite(logits).all(dim=-1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise not_finite(len(contexts[row]) - 1)


def not_finite(position: int) -> GenerationError:
    """The error for logits after some position of a text."""
    return GenerationError(f"the model's logits after position {position} are not finite; its weights are damaged")
