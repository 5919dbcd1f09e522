"""Write and load plugins for tests, and unload them afterward.

Their names begin with `own_`, so that no test fails in a checkout whose reader has added an
activation called mish.
"""

from pathlib import Path

from gpt.config.plugins import PLUGINS, Plugin, load_plugins, unload_plugin

PARTS = """
import torch
import torch.nn.functional as F

from gpt.model.layers import ACTIVATIONS, MLPS, NORMS
from gpt.model.positions import POSITIONS, ScoreBias
from gpt.training.objective import LOSS_TERMS
from gpt.training.optimizers import OPTIMIZERS
from gpt.training.schedule import SCHEDULES


class ALiBi(ScoreBias):
    def __init__(self, config):
        super().__init__()
        slopes = [2 ** (-8 * head / config.n_head) for head in range(1, config.n_head + 1)]
        self.register_buffer("slopes", torch.tensor(slopes).view(-1, 1, 1), persistent=False)

    def forward(self, queries, keys):
        return -self.slopes * (queries.unsqueeze(-1) - keys.unsqueeze(-2)).unsqueeze(-3)


class Momentum(torch.optim.Optimizer):
    def __init__(self, groups, config):
        super().__init__(groups, {"lr": config.learning_rate})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                average = state.setdefault("average", torch.zeros_like(p))
                state["count"] = state.get("count", 0) + 1
                average.lerp_(p.grad, 1 / state["count"])
                p.sub_(average, alpha=group["lr"])


class Bilinear(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.left, self.right = (torch.nn.Linear(config.n_embd, 8, bias=False) for _ in "lr")
        self.c_proj = torch.nn.Linear(8, config.n_embd, bias=False)

    def forward(self, x):
        return self.c_proj(self.left(x) * self.right(x))


ACTIVATIONS |= {"own_mish": F.mish, "prelu": torch.nn.PReLU}
MLPS["bilinear"] = Bilinear
NORMS["double"] = lambda config: torch.nn.Sequential(
    torch.nn.LayerNorm(config.n_embd), torch.nn.LayerNorm(config.n_embd)
)
POSITIONS["own_alibi"] = ALiBi
OPTIMIZERS["momentum"] = Momentum
LOSS_TERMS["own_confidence"] = (
    lambda logits, targets: -logits.float().log_softmax(-1).mean(-1).sum()
)
SCHEDULES["own_linear"] = lambda step, config, max_steps: 1 - step / max_steps
"""
"""A plugin with a component of every kind."""


def plugin_of(folder: Path, code: str = PARTS, name: str = "my_parts.py") -> Plugin:
    """Write a plugin and load it."""
    path = folder / name
    path.write_text(code, encoding="utf-8")
    load_plugins([path])
    return PLUGINS[path.resolve()]


def unload() -> None:
    """Unload all plugins."""
    for path in list(PLUGINS):
        unload_plugin(path)
