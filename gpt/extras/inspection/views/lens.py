"""The logit lens: what the model would predict if it stopped after each block (nostalgebraist 2020)."""

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
    """Apply the final norm and the head to every residual stream.

    `idx` is token ids (B, T) or (T,), or a text: one text is a batch of 1. The logits (n_layer + 1, B, T, V) float32
    have row 0 from the embeddings, row i from the stream after i blocks; the last row has the model's own logits.
    """
    idx, layers = to_batch(idx, tokenizer, model.wte.weight.device), model.config.n_layer
    _refuse_late(model, edits or {})
    shape = (layers + 1, *idx.shape, model.vocab_size)
    needed = torch.Size(shape).numel() * torch.float32.itemsize
    if needed > memory_limit:
        raise InputError(
            f"a lens of that text takes {needed:,} bytes, more than the limit of {memory_limit:,}"
        )
    names = [
        "blocks.0.hook_resid_pre",
        *(f"blocks.{layer}.hook_resid_post" for layer in range(layers)),
    ]
    logits, cache = run_with_cache(model, idx, names, edits, memory_limit)
    lens = torch.empty(shape, dtype=torch.float32, device=logits.device)
    for row, stream in zip(lens, cache.values(), strict=True):
        row.copy_(model.lm_head(model.ln_f(stream)).float())
    require_equal("a logit lens", "lm_head(ln_f(x))", lens[-1], logits)
    lens[-1] = logits
    return lens


def _refuse_late(model: GPT, edits: Edits) -> None:
    # which would affect only the last row
    table = activations(model.config)
    late = [name for pattern in edits for name in select(table, pattern) if name in HEAD]
    if late:
        raise InputError(
            f"a lens reads the streams, and {late[0]} comes later; edit an activation of a block"
        )


def lens_rows(n_layer: int) -> list[str]:
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

    `labels` (T,); `rows`, their names; `top[row][position]`, the `count` most likely next tokens with their
    probabilities; `next` (T,), the actual next tokens, null after the last; `next_probability[row][position]`.
    """
    labels = labels_of(tokenizer, idx.tolist())
    names = labels_of(tokenizer, range(model.vocab_size))
    top, came = [], []
    for logits in logit_lens(model, idx.unsqueeze(0), edits, memory_limit)[:, 0]:
        # (T, V), one row at a time: all rows together are as large as the lens
        probabilities = logits.softmax(dim=-1)
        require_finite(probabilities)
        top.append([with_labels(names, tokens) for tokens in most_likely(probabilities, count)])
        came.append(probabilities[:-1].gather(1, idx[1:, None]).squeeze(1).tolist())
    return {
        "labels": labels,
        "rows": lens_rows(model.config.n_layer),
        "top": top,
        "next": [*labels[1:], None],
        "next_probability": [[*row, None] for row in came],
    }
