"""Which parameters go to which optimizer."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.training.optimizers.muon import Muon
from gpt.training.optimizers.together import Together


def build_optimizer(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype = torch.float32
) -> Together:
    """AdamW (Loshchilov and Hutter 2017, 1711.05101), or Muon for the matrices of the blocks and AdamW for the rest.

    AdamW decays matrices and embeddings; vectors (norm gains, biases) are not decayed. The learning
    rate is set at every step, by `schedule.learning_rate`, times each group's `lr_factor`. Muon's Newton-Schulz
    iterations run in `fast_dtype`.
    """
    if config.name == "adamw":
        return Together({"adamw": _adamw(list(model.parameters()), config, device)})  # a tied weight comes once
    matrices = [parameter for parameter in model.h.parameters() if parameter.dim() == 2]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = Muon(matrices, config.muon_rate, config.muon_momentum, config.muon_weight_decay, dtype=fast_dtype)
    muon.param_groups[0]["lr_factor"] = config.muon_rate / config.learning_rate
    return Together({"muon": muon, "adamw": _adamw(rest, config, device)})


def _adamw(parameters: Sequence[Tensor], config: OptimConfig, device: torch.device) -> Optimizer:
    """Fused where torch has the kernel."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay, "lr_factor": 1.0},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "lr_factor": 1.0},
    ]
    fused = device.type in ("cpu", "cuda")
    return AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=fused)
