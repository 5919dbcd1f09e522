"""Compute how surprised a model is by each token of a text, and what it expected instead."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.token_ids import TextOrIds
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.activation_cache import Edits, one_text, run_with_cache
from gpt.extras.inspection.views.tokens import Alternative, most_likely
from gpt.model import GPT


@dataclass(frozen=True, repr=False)
class Surprisal:
    """The surprisal of one text of T tokens.

    Entry i is about token i + 1, given all tokens before it.
    """

    bits: Tensor  # `-log2 p` of the tokens in the text, (T - 1,) float32
    probabilities: Tensor  # of every token, (T - 1, V)

    def __repr__(self) -> str:
        return f"Surprisal({len(self.bits)} tokens, {self.mean_bits:.4g} bits per token)"

    @property
    def mean_bits(self) -> float:
        """Return the mean bits per token, which are bits per character if tokens are characters.

        The number is read back, for which a GPU has to be waited for.
        """
        return float(self.bits.mean())

    def alternatives(self, count: int) -> list[list[Alternative]]:
        """Return the `count` most likely tokens of every entry."""
        return most_likely(self.probabilities, count)


@torch.no_grad()
def surprisal(
    model: GPT, idx: TextOrIds, edits: Edits | None = None, tokenizer: Tokenizer | None = None
) -> Surprisal:
    """Compute the surprisal of every token but the first, which has no context (Shannon 1948).

    Args:
        idx: one text of at least two tokens: its ids, (T,) or (1, T), or the text itself.
        edits: see `run_with_cache`.
    """
    idx = one_text(model, idx, tokenizer, 2, "surprisal")
    logits, _ = run_with_cache(model, idx.unsqueeze(0), names=[], edits=edits)
    logits = logits[0, :-1]  # (T - 1, V): after the last token there is none to predict
    targets = idx[1:, None]  # (T - 1, 1)
    logprobs = logits.log_softmax(dim=-1).gather(1, targets).squeeze(1)
    bits = -logprobs / math.log(2)  # from nats
    return Surprisal(bits, logits.softmax(dim=-1))
