"""How surprised a model is by each token of a text, and what it expected instead."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.errors import InputError
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.activations import Edits, run_with_cache
from gpt.model import GPT

Alternative = tuple[int, float]
"""A token id and its probability."""


@dataclass(frozen=True)
class Surprisal:
    """Of one text of T tokens; entry i is about token i + 1, given those before it.

    Attributes:
        bits: `-log2 p` of the tokens that came, (T - 1,) float32.
        before: the model's own distribution, (T - 1, V).
        after: the distribution that sampling draws from, (T - 1, V).
    """

    bits: Tensor
    before: Tensor
    after: Tensor

    @property
    def mean_bits(self) -> float:
        """Per token; for characters this is bits per character."""
        return float(self.bits.mean())

    def alternatives(self, entry: int, count: int) -> tuple[list[Alternative], list[Alternative]]:
        """The most likely tokens of an entry, before and after the filters; dropped ones are left out."""
        return _top(self.before[entry], count), _top(self.after[entry], count)


@torch.no_grad()
def surprisal(model: GPT, idx: Tensor, params: SamplingParams | None = None, edits: Edits | None = None) -> Surprisal:
    """Surprisal of every token but the first, which nothing comes before (Shannon 1948).

    Args:
        model: in eval mode.
        idx: token ids (T,) int64 of one text, at least two.
        params: how sampling would change the distribution; None: the defaults.
        edits: see `run_with_cache`.

    Raises:
        InputError: fewer than two ids, or more than the window holds.
    """
    if idx.dim() != 1 or len(idx) < 2:
        raise InputError("surprisal needs one text of at least 2 tokens")
    logits, _ = run_with_cache(model, idx.unsqueeze(0), names=[], edits=edits)
    logits = logits[0, :-1]
    before = logits.softmax(dim=-1)
    logprobs = logits.log_softmax(dim=-1).gather(1, idx[1:, None]).squeeze(1)
    contexts = [idx[: end + 1].tolist() for end in range(len(idx) - 1)]
    after = next_token_probabilities(logits, params or SamplingParams(), contexts)
    return Surprisal(-logprobs / math.log(2), before, after)


def _top(probabilities: Tensor, count: int) -> list[Alternative]:
    values, ids = probabilities.topk(min(count, len(probabilities)))
    return [(index, value) for index, value in zip(ids.tolist(), values.tolist(), strict=True) if value > 0]
