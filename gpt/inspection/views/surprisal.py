"""How surprised a model is by each token of a text, and what it expected instead."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.tracing.activations import Edits, one_text, run_with_cache
from gpt.inspection.views.likeliest import Alternative, likeliest
from gpt.model import GPT


@dataclass(frozen=True)
class Surprisal:
    """The surprisal of one text of T tokens; entry i is about token i + 1, given those before it.

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
        """Return the mean bits per token; for characters these are bits per character."""
        return float(self.bits.mean())

    def alternatives(self, count: int) -> tuple[list[list[Alternative]], list[list[Alternative]]]:
        """Return the most likely tokens of every entry, before and after the filters; dropped ones are left out."""
        return _possible(self.before, count), _possible(self.after, count)


@torch.no_grad()
def surprisal(model: GPT, idx: Tensor, params: SamplingParams | None = None, edits: Edits | None = None) -> Surprisal:
    """Compute the surprisal of every token but the first, which nothing comes before (Shannon 1948).

    It holds a few numbers for each token and id, no more than the logits themselves, and so has no limit
    of memory.

    Args:
        model: in eval mode.
        idx: token ids (T,) int64 of one text, at least two.
        params: how sampling would change the distribution; None: the defaults.
        edits: see `run_with_cache`.

    Raises:
        InputError: the ids are not those of one text, fewer than two or more than the window holds, or an
            edit does not fit.
    """
    one_text(idx, 2, "surprisal")
    logits, _ = run_with_cache(model, idx.unsqueeze(0), names=[], edits=edits)
    logits = logits[0, :-1]
    before = logits.softmax(dim=-1)
    logprobs = logits.log_softmax(dim=-1).gather(1, idx[1:, None]).squeeze(1)
    ids = idx.tolist()
    contexts = [ids[: end + 1] for end in range(len(ids) - 1)]
    after = next_token_probabilities(logits, params or SamplingParams(), contexts)
    return Surprisal(-logprobs / math.log(2), before, after)


def _possible(probabilities: Tensor, count: int) -> list[list[Alternative]]:
    return [[(index, p) for index, p in row if p > 0] for row in likeliest(probabilities, count)]
