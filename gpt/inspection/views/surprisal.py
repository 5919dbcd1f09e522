"""Compute how surprised a model is by each token of a text, and what it expected instead."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.token_ids import TextOrIds
from gpt.data.tokenizers import Tokenizer
from gpt.filters import FILTERS
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.tracing.activation_cache import Edits, one_text, run_with_cache
from gpt.inspection.views.tokens import Alternative, View, labels_of, most_likely, require_finite, with_labels
from gpt.model import GPT


@dataclass(frozen=True)
class Surprisal:
    """The surprisal of one text of T tokens; entry i is about token i + 1, given the tokens before it."""

    bits: Tensor  # `-log2 p` of the tokens in the text, (T - 1,) float32
    before: Tensor  # the model's own distribution, (T - 1, V)
    after: Tensor  # the distribution after sampling's filters, (T - 1, V)

    @property
    def mean_bits(self) -> float:
        """Return the mean bits per token, which are bits per character if tokens are characters."""
        return float(self.bits.mean())

    def alternatives(self, count: int) -> tuple[list[list[Alternative]], list[list[Alternative]]]:
        """Return the most likely tokens of every entry before and after the filters, without those that are dropped."""
        return _possible(self.before, count), _possible(self.after, count)


@torch.no_grad()
def surprisal(
    model: GPT,
    idx: TextOrIds,
    params: SamplingParams | None = None,
    edits: Edits | None = None,
    tokenizer: Tokenizer | None = None,
) -> Surprisal:
    """Compute the surprisal of every token but the first, which has no context (Shannon 1948).

    The result has a few numbers for each token and id, not many more than the logits, so there is no memory
    limit.

    Args:
        idx: one text of at least two tokens: ids (T,) or (1, T), or the text.
        params: how sampling would change the distribution; None: the defaults.
        edits: see `run_with_cache`.

    Raises:
        InputError: the ids are not those of one text, are fewer than two or more than the window, or an
            edit does not fit.
    """
    idx = one_text(model, idx, tokenizer, 2, "surprisal")
    logits, _ = run_with_cache(model, idx.unsqueeze(0), names=[], edits=edits)
    logits = logits[0, :-1]
    before = logits.softmax(dim=-1)
    logprobs = logits.log_softmax(dim=-1).gather(1, idx[1:, None]).squeeze(1)
    ids = idx.tolist()
    contexts = [ids[: end + 1] for end in range(len(ids) - 1)]
    after = next_token_probabilities(logits, params or SamplingParams(), contexts)
    return Surprisal(-logprobs / math.log(2), before, after)


def _possible(probabilities: Tensor, count: int) -> list[list[Alternative]]:
    return [[(index, p) for index, p in row if p > 0] for row in most_likely(probabilities, count)]


def surprisal_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    params: SamplingParams,
    count: int = 5,
    edits: Edits | None = None,
) -> View:
    """Compute the surprisal of one text (T,) as lists, with an entry for each token.

    Returns:
        `labels` (T,); `bits` (T,), null for the first; `before[i]` and `after[i]`, the `count` most likely
        tokens at position i with their probabilities, empty for the first; `mean_bits`; `settings`.
    """
    result = surprisal(model, idx, params.limited_to(tokenizer.vocab_size), edits)
    require_finite(result.bits)
    names = labels_of(tokenizer, range(result.before.size(-1)))
    before, after = result.alternatives(count)
    return {
        "labels": labels_of(tokenizer, idx.tolist()),
        "bits": [None, *result.bits.tolist()],
        "before": [[], *(with_labels(names, tokens) for tokens in before)],
        "after": [[], *(with_labels(names, tokens) for tokens in after)],
        "mean_bits": result.mean_bits,
        "settings": describe_sampling(params),
    }


def describe_sampling(params: SamplingParams) -> str:
    """Describe the sampling parameters that change the distribution, in a few words."""
    parts = [f"temperature {params.temperature:g}"]
    given = {name: getattr(params, name) for name, part in FILTERS.items() if getattr(params, name) != part.off}
    parts += [f"{name.replace('_', '-')} {value:g}" for name, value in given.items()]
    parts += [f"repetition penalty {params.repetition_penalty:g}"] if params.repetition_penalty != 1 else []
    return ", ".join(parts)
