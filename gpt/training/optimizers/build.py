"""The optimizer and its two parameter groups."""

import torch
from torch import nn

from gpt.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2017, 1711.05101), fused where torch has the kernel.

    Matrices and embeddings are decayed; vectors (norm gains, biases) are not. The learning rate is
    set at every step, by `schedule.learning_rate`.
    """
    parameters = list(model.parameters())  # a tied weight comes once
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=fused)
