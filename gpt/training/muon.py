"""Muon: momentum whose updates are orthogonalized (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration that raise small singular values fastest."""


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Approximate the closest matrices with orthogonal rows or columns, whose singular values are 1.

    Args:
        matrices: (n, rows, columns), in the dtype to compute in.
        steps: Newton-Schulz iterations; 5 bring singular values to about 0.7 to 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices
    is_tall = x.size(-2) > x.size(-1)
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


class Muon(Optimizer):
    """Muon for matrices; those of equal shape are orthogonalized as a batch.

    Args:
        lr: learning rate; an update has spectral norm of about `lr * sqrt(max(1, rows / columns))`.
        momentum: of Nesterov, over a moving average of gradients.
        weight_decay: decoupled; weights shrink by the factor 1 - lr * weight_decay.
        dtype: of the Newton-Schulz iterations; bfloat16 suffices.
    """

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None
    """1, on the device, if this update must be skipped, as in fused AdamW; None: unset."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps})
        self._dtype = dtype
        assert all(p.dim() == 2 for group in self.param_groups for p in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for weights in by_shape.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of equal shape."""
        rows, columns = weights[0].shape
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))  # the spectral norm of the update
        momenta = [self._momentum(weight) for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        keep: float | Tensor = 1.0
        if self.found_inf is not None:
            keep = 1.0 - self.found_inf
            # zero times a gradient that is not finite is not zero
            gradients = [torch.where(self.found_inf > 0, m, g) for m, g in zip(momenta, gradients, strict=True)]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, momenta, group["momentum"])
        matrices = torch.stack(nesterov)
        updates = keep * rate * orthogonalize(matrices.to(self._dtype), group["steps"]).to(matrices.dtype)
        torch._foreach_mul_(weights, 1 - keep * group["lr"] * group["weight_decay"])
        torch._foreach_sub_(weights, list(updates.unbind()))

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]
