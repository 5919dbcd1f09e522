"""Attention weights of every head, and what each head mostly looks at."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.inspection.activations import MEMORY_LIMIT, Edits, run_with_cache
from gpt.inspection.edits import zero
from gpt.model import GPT


@dataclass(frozen=True)
class HeadSummary:
    """Where one head looks, averaged over the queries that have more than one key.

    Attributes:
        itself: weight on the query's own position.
        previous: weight on the position before it.
        first: weight on the first position.
        distance: positions it looks back.
        entropy: of the weights, in bits; 0 looks at one key.
    """

    itself: float
    previous: float
    first: float
    distance: float
    entropy: float


@torch.no_grad()
def attention_patterns(model: GPT, idx: Tensor, memory_limit: int = MEMORY_LIMIT) -> Tensor:
    """Attention weights of one text.

    Args:
        model: in eval mode.
        idx: token ids (T,) int64.
        memory_limit: most bytes of the result.

    Returns:
        (n_layer, H, T, T): `[layer, h, i]` is where query i looks, and sums to 1; `[layer, h, i, j]` is
        its weight on key j, 0 for every later one; `[layer, :, -1]` is where all heads look from the
        last token.

    Raises:
        InputError: the ids do not fit the model, or the result would be too large.
    """
    _, cache = run_with_cache(model, idx.unsqueeze(0), "blocks.*.attn.hook_pattern", memory_limit=memory_limit)
    return torch.cat(list(cache.values()))


def summarise_head(pattern: Tensor) -> HeadSummary:
    """What a head does, from its weights (T, T); the first query has no choice and is left out if it can be."""
    size = pattern.size(0)
    rows = pattern[1:] if size > 1 else pattern
    positions = torch.arange(size, device=pattern.device)
    back = positions[size - len(rows) :, None] - positions
    return HeadSummary(
        itself=float(pattern.diagonal()[size - len(rows) :].mean()),
        previous=float(pattern.diagonal(-1).mean()) if size > 1 else 0.0,
        first=float(rows[:, 0].mean()),
        distance=float((rows * back).sum(dim=-1).mean()),
        entropy=float(torch.special.entr(rows).sum(dim=-1).mean()) / float(torch.tensor(2.0).log()),
    )


@torch.no_grad()
def ablate_heads(model: GPT, idx: Tensor) -> Tensor:
    """How much worse the model predicts a text without each head.

    Args:
        model: in eval mode.
        idx: token ids (T,) int64, at least two.

    Returns:
        (n_layer, H): mean loss with the head's output zeroed, minus the loss without a change, in nats
        per token. Michel et al. 2019 (1905.10650), section 3.

    Raises:
        InputError: the ids do not fit the model.
    """
    config, inputs, targets = model.config, idx[None, :-1], idx[1:]

    def loss(edits: Edits) -> Tensor:
        logits, _ = run_with_cache(model, inputs, names=[], edits=edits)
        return torch.nn.functional.cross_entropy(logits[0], targets)

    whole = loss({})
    changes = [
        loss({f"blocks.{layer}.attn.hook_z": zero(head)}) - whole
        for layer in range(config.n_layer)
        for head in range(config.n_head)
    ]
    return torch.stack(changes).view(config.n_layer, config.n_head)
