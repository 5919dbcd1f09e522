"""A text, a recipe and models for many tests, so small that a step takes a millisecond."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import ModelConfig
from gpt.model import GPT

CORPUS = (
    "It was the best of rooms, it was the worst of rooms; "
    "every door had a key, every key had a door.\n"
    "Who keeps the keys? asked Ada. The keeper, said Tom, and the keeper sleeps till seven.\n"
)

TINY = """
run: {name: tiny, device: cpu, dtype: float32}
data: {source: file, path: corpus.txt}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16}
optim: {warmup_steps: 2}
train: {batch_size: 4, max_steps: 6, eval_interval: 3, log_interval: 1, sample_tokens: 10}
"""
"""A recipe that is trained in half a second."""


def tiny_config(**changes: object) -> ModelConfig:
    """Return a configuration of 2 layers, 4 heads, width 32, 16 positions and 23 ids."""
    values = {
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 32,
        "block_size": 16,
        "vocab_size": 23,
        **changes,
    }
    return ModelConfig.model_validate(values)


def sharp_model(std: float = 0.2, seed: int = 0, **changes: object) -> GPT:
    """Return a tiny model in eval mode whose weights are so large that every part matters to its
    logits.
    """
    torch.manual_seed(seed)
    model = GPT(tiny_config(**{"tie_weights": False, **changes})).eval()
    for parameter in model.parameters():
        is_vector = parameter.dim() == 1  # the weight of a norm, which is about 1, or a bias
        nn.init.normal_(parameter, mean=1.0 if is_vector else 0.0, std=std)
    return model


@torch.no_grad()
def loss_by_definition(model: GPT, ids: Tensor, stride: int) -> float:
    """Return the mean loss in nats of all tokens but the first, by one forward pass a window.

    Windows of `block_size` tokens begin `stride` apart; each token is scored by the first window
    that predicts it.
    """
    losses: list[Tensor] = []
    start = 0
    scored = 0  # tokens that earlier windows have predicted
    while scored < len(ids) - 1:
        end = min(start + model.config.block_size, len(ids) - 1)
        logits = model(ids[None, start:end])[0]  # (T, V)
        window = F.cross_entropy(logits, ids[start + 1 : end + 1], reduction="none")  # (T,)
        losses.append(window[scored - start :])
        scored = end
        start += stride
    return torch.cat(losses).mean().item()
