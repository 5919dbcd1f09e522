"""The logit lens: what the model would predict if it stopped after each block (nostalgebraist 2020)."""

import torch
from torch import Tensor

from gpt.errors import InputError
from gpt.inspection.activations import MEMORY_LIMIT, Edits, run_with_cache
from gpt.model import GPT


@torch.no_grad()
def logit_lens(model: GPT, idx: Tensor, edits: Edits | None = None, memory_limit: int = MEMORY_LIMIT) -> Tensor:
    """Every residual stream through the final norm and the head.

    Args:
        model: in eval mode.
        idx: token ids (B, T) int64.
        edits: see `run_with_cache`.
        memory_limit: most bytes of the result.

    Returns:
        Logits (n_layer + 1, B, T, V) float32: row 0 is of the embeddings, row i of the stream after
        i blocks; the last row is the model's own logits.

    Raises:
        InputError: the ids do not fit the model, or the result would be too large.
    """
    layers = model.config.n_layer
    needed = (layers + 1) * idx.numel() * model.vocab_size * torch.float32.itemsize
    if needed > memory_limit:
        raise InputError(f"a lens of that text takes {needed:,} bytes, more than the limit of {memory_limit:,}")
    names = ["blocks.0.hook_resid_pre", "blocks.*.hook_resid_post"]
    logits, cache = run_with_cache(model, idx, names, edits, memory_limit)
    streams = list(cache.values())[:-1]
    return torch.stack([*(model.softcap(model.lm_head(model.ln_f(stream)).float()) for stream in streams), logits])


def lens_rows(n_layer: int) -> list[str]:
    """What the rows of `logit_lens` are of."""
    return ["embeddings", *(f"block {layer}" for layer in range(n_layer))]
