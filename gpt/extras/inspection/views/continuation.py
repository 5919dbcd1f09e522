"""What a model writes after a text when it always takes the most likely token, edited or not."""

import torch
from torch import Tensor

from gpt.data.tokenizers import Tokenizer
from gpt.extras.inspection.tracing.activation_cache import Edits, edited_model, one_text
from gpt.extras.inspection.views.tokens import View, labels_of, require_finite
from gpt.generation.kv_cache import KVCache
from gpt.model import GPT


@torch.no_grad()
def greedy_continuation(
    model: GPT, idx: Tensor, count: int, edits: Edits | None = None
) -> tuple[Tensor, Tensor]:
    """Continue ids (T,) by the most likely token, `count` times, which is at least once.

    The model sees the last `block_size` tokens. Edits are made in every step.

    Returns:
        The new ids (count,) int64 and their probabilities (count,) float32, both on the CPU.
    """
    idx = one_text(model, idx, None, 1, "greedy_continuation")
    window = model.config.block_size
    edited = edited_model(model, edits or {})
    cache = KVCache(model.config, device=idx.device)
    ids = idx[-window:]
    uncached = ids
    probabilities = []
    for _ in range(count):
        if cache.length + len(uncached) <= window:
            logits = edited(uncached[None], cache=cache)  # (1, T, V)
        else:
            # The window slides: each token in it has another position than before, for which the
            # cached keys and values are wrong.
            logits = edited(ids[-window:][None])
        likely = logits[0, -1].softmax(dim=-1).max(dim=-1)
        require_finite(likely.values)
        uncached = likely.indices.view(1)
        ids = torch.cat([ids, uncached])
        probabilities.append(likely.values)
    return ids[-count:].cpu(), torch.stack(probabilities).float().cpu()


def continuation_view(
    model: GPT, tokenizer: Tokenizer, idx: Tensor, count: int, edits: Edits | None = None
) -> View:
    """Continue one text (T,) by the most likely token.

    Returns:
        `ids` (count,) of the new tokens, their `labels` and their `probabilities`, as lists.
    """
    ids, probabilities = greedy_continuation(model, idx, count, edits)
    return {
        "ids": ids.tolist(),
        "labels": labels_of(tokenizer, ids.tolist()),
        "probabilities": probabilities.tolist(),
    }
