"""The logit lens: what the model would predict if it stopped after each block.

The method is that of nostalgebraist 2020.
"""

import torch
from torch import Tensor

from gpt.data.token_ids import TextOrIds, to_batch
from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.activation_cache import MEMORY_LIMIT, Edits, run_with_cache
from gpt.extras.inspection.tracing.activation_names import HEAD, activations, select
from gpt.extras.inspection.tracing.hooks import require_equal
from gpt.extras.inspection.views.tokens import (
    View,
    labels_of,
    most_likely,
    require_finite,
    with_labels,
)
from gpt.model import GPT
from gpt.system.errors import InputError


@torch.no_grad()
def logit_lens(
    model: GPT,
    idx: TextOrIds,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
    tokenizer: Tokenizer | None = None,
) -> Tensor:
    """Apply the final norm and the head to the residual stream after each block.

    Args:
        idx: token ids (B, T) or (T,), or a text; one text is a batch of 1.
        edits: see `run_with_cache`.
        memory_limit: most bytes that the result may have, and those of the streams, too.

    Returns:
        Logits (n_layer + 1, B, T, V) float32. Row 0 is that of the embeddings, row i that of the
        stream after i blocks. The last row has the logits of the model itself.
    """
    idx = to_batch(idx, tokenizer, model.wte.weight.device)
    n_layer = model.config.n_layer
    _require_edits_of_blocks(model, edits or {})
    shape = (n_layer + 1, *idx.shape, model.vocab_size)
    needed = torch.Size(shape).numel() * torch.float32.itemsize
    if needed > memory_limit:
        raise InputError(
            f"a lens of that text takes {needed:,} bytes, more than the limit of {memory_limit:,}"
        )
    names = ["blocks.0.hook_resid_pre"]
    names += [f"blocks.{layer}.hook_resid_post" for layer in range(n_layer)]
    logits, cache = run_with_cache(model, idx, names, edits, memory_limit)
    lens = torch.empty(shape, dtype=torch.float32, device=logits.device)
    for row, stream in zip(lens, cache.values(), strict=True):
        row.copy_(model.lm_head(model.ln_f(stream)).float())
    # Only a model that ends with this norm and this head has such a lens.
    require_equal("a logit lens", "lm_head(ln_f(x))", lens[-1], logits)
    lens[-1] = logits
    return lens


def _require_edits_of_blocks(model: GPT, edits: Edits) -> None:
    """Raise InputError on an edit after the last block, which would change only the last row."""
    table = activations(model.config)
    for pattern in edits:
        for name in select(table, pattern):
            if name in HEAD:
                raise InputError(
                    f"a lens reads the streams, and {name} comes later; edit an activation of a "
                    "block"
                )


def lens_rows(n_layer: int) -> list[str]:
    """Return the names of the rows of a logit lens."""
    return ["embeddings", *(f"block {layer}" for layer in range(n_layer))]


def lens_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    count: int = 5,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> View:
    """Compute the logit lens of one text (T,) as lists.

    Returns:
        `labels` (T,) of the tokens; `rows`, the names of the rows; `top[row][position]`, the
        `count` most likely next tokens with their probabilities; `next` (T,), the actual next
        tokens; `next_probability[row][position]`, their probabilities. The last token has no next
        one: both are None there.
    """
    labels = labels_of(tokenizer, idx.tolist())
    every_label = labels_of(tokenizer, range(model.vocab_size))
    top = []
    next_probability = []
    lens = logit_lens(model, idx.unsqueeze(0), edits, memory_limit)[:, 0]  # (n_layer + 1, T, V)
    # One row at a time, since the probabilities of all rows would be as large as the lens.
    for logits in lens:
        probabilities = logits.softmax(dim=-1)  # (T, V)
        require_finite(probabilities)
        top.append([with_labels(every_label, row) for row in most_likely(probabilities, count)])
        of_next = probabilities[:-1].gather(1, idx[1:, None]).squeeze(1)  # (T - 1,)
        next_probability.append([*of_next.tolist(), None])
    return {
        "labels": labels,
        "rows": lens_rows(model.config.n_layer),
        "top": top,
        "next": [*labels[1:], None],
        "next_probability": next_probability,
    }
