"""Compute the attention weights of every head, and what they tell.

A head is summarized by what it attends to, and by how much the loss depends on it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.token_ids import TextOrIds
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.activation_cache import (
    MEMORY_LIMIT,
    Edits,
    as_sequence,
    one_text,
    run_with_cache,
)
from gpt.extras.inspection.tracing.edits import zero
from gpt.extras.inspection.views.tokens import View, labels_of, require_finite
from gpt.model import GPT

HEAD_OUTPUT = "blocks.{}.attn.hook_z"
"""Name of the activation that holds the output of each head of a layer, before they are mixed."""


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
    """Compute the attention weights (n_layer, H, T, T) of one text.

    `[layer, h, i, j]` is the weight of query i on key j, and 0 for every later key. Each
    `[layer, h, i]` sums to 1.

    Args:
        idx: one text: its ids, (T,) or (1, T), or the text itself.
        edits: see `run_with_cache`.
        memory_limit: most bytes of the weights.
    """
    idx = one_text(model, idx, tokenizer, 1, "attention_patterns")
    _, cache = run_with_cache(
        model, idx.unsqueeze(0), "blocks.*.attn.hook_pattern", edits, memory_limit
    )
    return torch.cat(list(cache.values()))  # of (1, H, T, T) each


def attention_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> View:
    """Compute the attention weights of one text (T,) for a page or a table.

    Returns:
        The `labels` (T,) of the tokens, and `weights`, a tensor (n_layer, H, T, T) float32 on the
        CPU.
    """
    weights = attention_patterns(model, idx, edits, memory_limit).float().cpu()
    require_finite(weights)
    return {"labels": labels_of(tokenizer, idx.tolist()), "weights": weights}


def summarize_head(pattern: Tensor) -> HeadSummary:
    """Summarize a head by its weights (T, T).

    The first query is left out, since it has only one key; not so in a text of one token, which has
    no other query. Each number is read back, which waits for a CUDA device: move the weights to the
    CPU first.
    """
    size = pattern.size(0)
    first_query = 1 if size > 1 else 0
    rows = pattern[first_query:]  # (Q, T)
    positions = torch.arange(size, device=pattern.device)
    distances = positions[first_query:, None] - positions  # (Q, T), from each query to each key
    own = pattern.diagonal()[first_query:]
    previous = pattern.diagonal(-1)  # of all queries but the first, which has no previous key
    nats = torch.special.entr(rows).sum(dim=-1).mean()  # entr(p) = -p ln p, and 0 for p = 0
    return HeadSummary(
        itself=float(own.mean()),
        previous=float(previous.mean()) if size > 1 else 0.0,
        first=float(rows[:, 0].mean()),
        distance=float((rows * distances).sum(dim=-1).mean()),
        entropy=float(nats) / math.log(2),
    )


@torch.no_grad()
def ablate_heads(
    model: GPT, idx: Tensor, edits: Edits | None = None, layers: Sequence[int] | None = None
) -> Tensor:
    """Compute how much worse a model predicts a text without each of its heads.

    The method is that of Michel et al. 2019 (1905.10650), section 3.

    Args:
        idx: the ids (T,) of a text of at least two tokens.
        edits: are made both with the head and without it; see `run_with_cache`.
        layers: those whose heads are left out, one at a time; None: all.

    Returns:
        A tensor (layers, H) float32: the mean loss with the output of the head zeroed, minus the
        loss with the head, in bits per token.
    """
    idx = one_text(model, idx, None, 2, "ablate_heads")
    if layers is None:
        layers = range(model.config.n_layer)
    whole = _mean_loss(model, idx, edits)
    rows = []
    for layer in layers:
        changes = []
        for head in range(model.config.n_head):
            changes.append(_mean_loss(model, idx, without_heads([(layer, head)], edits)) - whole)
        rows.append(torch.stack(changes))
    return torch.stack(rows)


def _mean_loss(model: GPT, idx: Tensor, edits: Edits | None) -> Tensor:
    """Compute the mean loss of ids (T,), in bits per token, as a tensor without dimensions."""
    logits, _ = run_with_cache(model, idx[None, :-1], names=[], edits=edits)  # (1, T - 1, V)
    nats = torch.nn.functional.cross_entropy(logits[0], idx[1:])
    return nats / math.log(2)


def without_heads(heads: Iterable[tuple[int, int]], edits: Edits | None = None) -> Edits:
    """Return edits that zero the outputs of some heads, after other edits.

    Args:
        heads: a layer and a head each, counted from 0.
    """
    changes = dict(edits or {})
    for layer, head in heads:
        name = HEAD_OUTPUT.format(layer)
        # The edits of this name move to the end, so that no edit of a pattern undoes the zeros.
        others = as_sequence(changes.pop(name, []))
        changes[name] = [*others, zero(head)]
    return changes
