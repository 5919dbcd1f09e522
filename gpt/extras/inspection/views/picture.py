"""Compute what one forward pass adds to the residual stream, part by part: the model as one picture."""

import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.data.tokenizers import Tokenizer
from gpt.extras.accounting.parameters import count_parameters
from gpt.extras.inspection.tracing.activation_cache import MEMORY_LIMIT, Edits, run_with_cache
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
"""What a block computes on the way, by the last parts of its activation's name: the first that a model has."""
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

    - `labels` (T,) and `ids` (T,) of the text;
    - `config`, the architecture with its derived sizes; `parameters`, pairs of a name and a shape of all that is
      outside the blocks, and of the first block: the others are like it;
    - `parts`, names of the P vectors whose sum is the residual stream, in the order in which they are added:
      `embedding`, `position` where the model adds one, then `attn` and `mlp` of each block; `added`, a tensor
      (P, T, C) float32 of them;
    - `normalized`, the lengths (T,) of what each norm gives, two of each block and the final one;
    - `queries` and `keys` as they are scored, (n_layer, T, H, D) and (n_layer, T, K, D) float32, and `hidden`, the
      hidden units of the MLPs, (n_layer, T, F), or None of a plugin's;
    - `weights`, a tensor (n_layer, H, T, T) float32 of attention weights;
    - `lens`, of the embeddings and of the stream after each block: the most likely token after each one, with its
      probability; `top`, the `CANDIDATES` most likely ones after the last block.
    """
    config = model.config
    has = {
        kind: [end for end in ends if f"blocks.0.{end}" in activations(config)]
        for kind, ends in VECTORS.items()
    }
    wanted = (
        *ADDED,
        *(end for ends in has.values() for end in ends[:1]),
        "hook_normalized",
        "hook_pattern",
    )
    names = [name for name in activations(config) if name.endswith(wanted)]
    last = f"blocks.{config.n_layer - 1}.hook_resid_post"
    _, cache = run_with_cache(model, idx.unsqueeze(0), [*names, last], edits, memory_limit)
    found = {
        kind: [name for name in names if name.endswith(kind)]
        for kind in (*ADDED, "normalized", "pattern")
    }
    parts = [name for name in names if name.rpartition(".")[2] in ADDED]
    added = torch.cat([cache[name] for name in parts]).float().cpu()
    require_finite(added)
    require_equal(
        "this model", "a sum of embeddings, attention and MLPs", added.sum(0), cache[last][0].cpu()
    )
    lens = lens_view(model, tokenizer, idx, CANDIDATES, edits, memory_limit)
    vectors = {
        kind: [cache[name] for name in names if name.endswith(tuple(ends[:1]))]
        for kind, ends in has.items()
    }
    return {
        "labels": lens["labels"],
        "ids": idx.tolist(),
        "config": sizes_of(config),
        "parameters": _parameters(config),
        "parts": [ADDED[name.rpartition(".")[2]] for name in parts],
        "added": added,
        **{
            kind: torch.cat(found).float().cpu() if found else None
            for kind, found in vectors.items()
        },
        "normalized": [
            cache[name][0].float().norm(dim=-1).tolist() for name in found["normalized"]
        ],
        "weights": torch.cat([cache[name] for name in found["pattern"]]).float().cpu(),
        "lens": [[candidates[0] for candidates in row] for row in lens["top"]],
        "top": lens["top"][-1],
    }


def sizes_of(config: ModelConfig) -> View:
    """Return an architecture as plain data, with the sizes that follow from others."""
    derived = {
        "n_kv_head": config.kv_heads,
        "head_dim": config.head_dim,
        "mlp_hidden": config.mlp_hidden,
    }
    return {**config.model_dump(), **derived}


def _parameters(config: ModelConfig) -> list[tuple[str, list[int]]]:
    tensors = count_parameters(config).tensors
    return [
        (tensor.name, list(tensor.shape))
        for tensor in tensors
        if tensor.name.startswith("h.0.") or tensor.name[:2] != "h."
    ]
