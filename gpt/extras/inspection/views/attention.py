"""Compute the attention weights of every head, what each mostly attends to, and how much the loss depends on it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.token_ids import TextOrIds
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.activation_cache import (
    MEMORY_LIMIT,
    Change,
    Edits,
    one_text,
    run_with_cache,
)
from gpt.extras.inspection.tracing.edits import zero
from gpt.extras.inspection.views.tokens import View, labels_of, require_finite
from gpt.model import GPT

HEAD_OUTPUT = "blocks.{}.attn.hook_z"
"""Name of the activation that holds what each head of a layer gives, before they are mixed."""


@dataclass(frozen=True)
class HeadSummary:
    """What one head attends to, averaged over the queries that have more than one key."""

    itself: float  # weight on the query's own position
    previous: float  # weight on the position before it
    first: float  # weight on the first position
    distance: float  # mean distance to the attended position
    entropy: float  # entropy of the weights, in bits; 0 if all weight is on one key


@torch.no_grad()
def attention_patterns(
    model: GPT,
    idx: TextOrIds,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
    tokenizer: Tokenizer | None = None,
) -> Tensor:
    """Compute the attention weights (n_layer, H, T, T) of one text: ids (T,) or (1, T), or the text.

    `[layer, h, i, j]` is the weight of query i on key j, 0 for every later key; `[layer, h, i]` sums to 1. For `edits`
    and `memory_limit` see `run_with_cache`.
    """
    idx = one_text(model, idx, tokenizer, 1, "attention_patterns")
    _, cache = run_with_cache(
        model, idx.unsqueeze(0), "blocks.*.attn.hook_pattern", edits, memory_limit
    )
    return torch.cat(list(cache.values()))


def attention_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> View:
    """Compute the `labels` (T,) of one text (T,), and `weights`, a tensor (n_layer, H, T, T) float32 on the CPU."""
    weights = attention_patterns(model, idx, edits, memory_limit).float().cpu()
    require_finite(weights)
    return {"labels": labels_of(tokenizer, idx.tolist()), "weights": weights}


def summarize_head(pattern: Tensor) -> HeadSummary:
    """Summarize a head from its weights (T, T); the first query has no choice and is left out if it can be.

    Each number is read back, which waits for a CUDA device, so move the weights to the CPU first.
    """
    size = pattern.size(0)
    rows = pattern[1:] if size > 1 else pattern
    positions = torch.arange(size, device=pattern.device)
    back = positions[size - len(rows) :, None] - positions
    return HeadSummary(
        itself=float(pattern.diagonal()[size - len(rows) :].mean()),
        previous=float(pattern.diagonal(-1).mean()) if size > 1 else 0.0,
        first=float(rows[:, 0].mean()),
        distance=float((rows * back).sum(dim=-1).mean()),
        entropy=float(torch.special.entr(rows).sum(dim=-1).mean()) / math.log(2),
    )


@torch.no_grad()
def ablate_heads(
    model: GPT, idx: Tensor, edits: Edits | None = None, layers: Sequence[int] | None = None
) -> Tensor:
    """Compute how much worse the model predicts a text, ids (T,), without each head of some layers, by default all.

    The result is (layers, H) float32: mean loss with the head's output zeroed, minus the loss with it, in nats per
    token. Michel et al. 2019 (1905.10650), section 3. Edits are made both with and without the head.
    """
    idx = one_text(model, idx, None, 2, "ablate_heads")
    inputs, targets = idx[None, :-1], idx[1:]

    def loss(edits: Edits) -> Tensor:
        logits, _ = run_with_cache(model, inputs, names=[], edits=edits)
        return torch.nn.functional.cross_entropy(logits[0], targets)

    whole = loss(edits or {})
    changes = [
        torch.stack(
            [
                loss(without_heads([(layer, head)], edits)) - whole
                for head in range(model.config.n_head)
            ]
        )
        for layer in (range(model.config.n_layer) if layers is None else layers)
    ]
    return torch.stack(changes)


def without_heads(heads: Iterable[tuple[int, int]], edits: Edits | None = None) -> Edits:
    """Return edits with those that zero the outputs of these heads, each a layer and a head, counted from 0."""
    changes = dict(edits or {})
    for layer, head in heads:
        name = HEAD_OUTPUT.format(layer)
        given = changes.pop(name, [])
        before: list[Change] = list(given) if isinstance(given, Sequence) else [given]
        changes[name] = [*before, zero(head)]  # last, so that no other edit undoes it
    return changes
