"""The model as one picture: what one forward pass adds to the residual stream, part by part."""

from collections.abc import Iterable

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.data.tokenizers import Tokenizer
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.inspection.tracing.activation_cache import (
    MEMORY_LIMIT,
    ActivationCache,
    Edits,
    run_with_cache,
)
from gpt.extras.inspection.tracing.activation_names import activations
from gpt.extras.inspection.tracing.hooks import require_equal
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.tokens import View, require_finite
from gpt.model import GPT

CANDIDATES = 10
"""Most likely next tokens after the last block."""
VECTORS = {
    "queries": ("attn.hook_rot_q", "attn.hook_q"),
    "keys": ("attn.hook_rot_k", "attn.hook_k"),
    "hidden": ("mlp.hook_post",),
}
"""Vectors that a block computes on the way, by the ends of their activations' names.

The first name that a model has counts: queries are scored as they were projected where no position
rotates them.
"""
ADDED = {
    "hook_embed": "embedding",
    "hook_pos_embed": "position",
    "hook_attn_out": "attn",
    "hook_mlp_out": "mlp",
}
"""What is added to the residual stream, by the last part of its activation's name."""


@torch.no_grad()
def picture_view(
    model: GPT,
    tokenizer: Tokenizer,
    idx: Tensor,
    edits: Edits | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> View:
    """Compute the parts of a model while it reads one text (T,).

    Returns:
        labels: (T,), and `ids` (T,), of the text.
        config: the architecture with its derived sizes.
        parameters: a name and a shape of each parameter outside of the blocks, and of the first
            block: the others are like it.
        parts: names of the P vectors whose sum is the residual stream, in the order in which they
            are added: `embedding`, `position` where the model adds one, then `attn` and `mlp` of
            each block.
        added: these vectors, a tensor (P, T, C) float32.
        queries: as they are scored, (n_layer, T, H, D) float32.
        keys: as they are scored, (n_layer, T, K, D) float32.
        hidden: the hidden units of the MLPs, (n_layer, T, F) float32; None if a plugin's are
            not known.
        normalized: the lengths (T,) of what each norm gives: two of each block, then the final one.
        weights: the attention weights, a tensor (n_layer, H, T, T) float32.
        lens: of the embeddings and of the stream after each block, the most likely token after each
            token of the text, with its probability.
        top: the `CANDIDATES` most likely ones after each token, by the last block.
    """
    config = model.config
    every_name = list(activations(config))
    added_names = [name for name in every_name if _last_part(name) in ADDED]
    norm_names = [name for name in every_name if name.endswith("hook_normalized")]
    pattern_names = [name for name in every_name if name.endswith("hook_pattern")]
    vector_names = {kind: _names_of_vectors(kind, every_name) for kind in VECTORS}
    last = f"blocks.{config.n_layer - 1}.hook_resid_post"
    wanted = [*added_names, *norm_names, *pattern_names, last]
    for names in vector_names.values():
        wanted += names
    _, cache = run_with_cache(model, idx.unsqueeze(0), wanted, edits, memory_limit)

    added = _stack(cache, added_names)
    require_finite(added)
    formula = "a sum of embeddings, attention and MLPs"
    require_equal("this model", formula, added.sum(0), cache[last][0].cpu())
    lens = lens_view(model, tokenizer, idx, CANDIDATES, edits, memory_limit)
    vectors = {}
    for kind, names in vector_names.items():
        vectors[kind] = _stack(cache, names) if names else None
    return {
        "labels": lens["labels"],
        "ids": idx.tolist(),
        "config": sizes_of(config),
        "parameters": _parameters(config),
        "parts": [ADDED[_last_part(name)] for name in added_names],
        "added": added,
        **vectors,
        "normalized": [cache[name][0].float().norm(dim=-1).tolist() for name in norm_names],
        "weights": _stack(cache, pattern_names),
        "lens": [[candidates[0] for candidates in row] for row in lens["top"]],
        "top": lens["top"][-1],
    }


def _last_part(name: str) -> str:
    """Return the name of an activation without its block and its module."""
    return name.rpartition(".")[2]


def _names_of_vectors(kind: str, every_name: Iterable[str]) -> list[str]:
    """Return the activations of one kind of `VECTORS`, one of each block; none if there is none."""
    for end in VECTORS[kind]:
        names = [name for name in every_name if name.endswith(end)]
        if names:
            return names
    return []


def _stack(cache: ActivationCache, names: Iterable[str]) -> Tensor:
    """Return activations (1, ...) of one text as one float32 tensor (names, ...) on the CPU."""
    return torch.cat([cache[name] for name in names]).float().cpu()


def sizes_of(config: ModelConfig) -> View:
    """Return an architecture as plain data, with the sizes that follow from others."""
    derived = {
        "n_kv_head": config.kv_heads,
        "head_dim": config.head_dim,
        "mlp_hidden": config.mlp_hidden,
    }
    return {**config.model_dump(), **derived}


def _parameters(config: ModelConfig) -> list[tuple[str, list[int]]]:
    """Return names and shapes of the parameters outside of the blocks and of the first block."""
    shapes = []
    for tensor in count_parameters(config).tensors:
        is_in_block = tensor.name.startswith("h.")
        if not is_in_block or tensor.name.startswith("h.0."):
            shapes.append((tensor.name, list(tensor.shape)))
    return shapes
