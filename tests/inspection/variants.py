"""Model variants that together take every path through the architecture."""

import pytest
import torch
from torch import Tensor, nn

VARIANTS: dict[str, dict[str, object]] = {
    "gpt2": {"bias": True, "mlp": "gelu_tanh"},
    "original": {"position": "sinusoidal", "mlp": "relu", "bias": True, "tie_weights": True},
    "llama": {"n_kv_head": 2, "position": "rope", "norm": "rmsnorm", "mlp": "swiglu"},
    "multi-query": {
        "n_kv_head": 1,
        "position": "rope",
        "mlp": "relu2",
        "mlp_width": 40,
        "bias": True,
    },
    "grouped": {"n_kv_head": 2, "norm": "rmsnorm", "qk_norm": True, "tie_weights": True},
    "modern": {"position": "rope", "qk_norm": True, "mlp": "swiglu", "bias": True},
    "written out": {"attention": "reference", "n_kv_head": 2},
    "fused": {"attention": "sdpa", "n_kv_head": 1, "position": "sinusoidal"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def some_ids(batch: int = 2, length: int = 7) -> Tensor:
    """Random ids of a tiny model, always the same."""
    return torch.randint(23, (batch, length), generator=torch.Generator().manual_seed(1))


def state_of(model: nn.Module) -> list[object]:
    """All that looking into a model could leave behind: hooks, modules, modes and weights."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        [(name, id(module), module.training) for name, module in model.named_modules()],
        [len(getattr(module, kind)) for module in model.modules() for kind in hooks],
        [
            (name, id(p), p.requires_grad, p.detach().sum().item())
            for name, p in model.named_parameters()
        ],
    ]
