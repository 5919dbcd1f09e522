"""The decoding loop over a batch: logits, distribution, sample, append; every sequence has its own generator."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation.backends import Backend, TokenIds
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


class Decoder(ABC):
    """Samples tokens for a batch of sequences.

    Attributes:
        active: indices, in `prompts`, of the sequences that are not finished.

    Args:
        backend: computes the logits; not used before.
        prompts: token ids, at least one each.
        params: of all sequences.

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

    def finish(self, indices: Collection[int]) -> None:
        """Stop sampling for these sequences."""
        keep = [place for place, index in enumerate(self.active) if index not in indices]
        if keep and len(keep) < len(self.active):
            self._backend.select(keep)
        self.active = [self.active[place] for place in keep]

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
        backend: as for `Decoder`.
        prompts: as for `Decoder`.
        params: as for `Decoder`.
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
        # what is read back waits for the device, so it is read once
        tokens, finite = torch.stack((sampled, torch.isfinite(logits).all(dim=-1).long())).tolist()
        if not all(finite):
            raise not_finite(len(sequences[finite.index(0)]) - 1)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        return dict(zip(self.active, describe(tokens, logits, self._params.logprobs), strict=True))


def describe(tokens: Sequence[int], logits: Tensor | None, count: int | None) -> list[SampledToken]:
    """Return sampled tokens, with their log-probabilities where these are asked for.

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
