"""Muon: momentum whose updates are orthogonalized.

Jordan et al. 2024, kellerjordan.github.io/posts/muon.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gpt.training.eager import EagerOptimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration: each singular value s becomes a s + b s^3 + c s^5.

These are Jordan's coefficients, which raise small singular values fastest. The singular values then
lie around 1 without converging to 1, which is enough for training.
"""


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Approximate the closest matrices whose singular values are 1.

    Args:
        matrices: (n, rows, columns), in the dtype to compute in.
        steps: number of Newton-Schulz iterations; after 5 most singular values lie between about
            0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices
    is_tall = x.size(-2) > x.size(-1)
    # The iterations compute the Gram matrix x x^T, which has as many rows and columns as x has
    # rows. So a tall matrix is transposed, to have fewer rows than columns.
    if is_tall:
        x = x.mT
    # The iterations need singular values of at most 1, and the Frobenius norm is at least as large
    # as the largest singular value. `clamp` keeps a gradient of zeros from becoming NaN.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    # Each iteration maps a singular value s to a s + b s^3 + c s^5, which raises small values
    # towards 1. It needs only products of matrices, and no singular value decomposition.
    for _ in range(steps):
        gram = x @ x.mT  # (n, m, m), where m is the smaller of rows and columns
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G^2
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a X + (b G + c G^2) X
    return x.mT if is_tall else x


class Muon(EagerOptimizer):
    """Muon for matrices; matrices of equal shape are orthogonalized as a batch.

    Args:
        lr: learning rate; an update has a spectral norm of about
            `lr * sqrt(max(1, rows / columns))`.
        momentum: weight of the past in the moving average of gradients, which is used as Nesterov's
            momentum.
        weight_decay: decoupled weight decay; each update multiplies weights by
            1 - lr * weight_decay.
        steps: number of Newton-Schulz iterations.
        dtype: type in which the Newton-Schulz iterations compute; bfloat16 is exact enough.

    Attributes:
        found_inf: a tensor on the device, which is 1 if the next update must be skipped, as in
            fused AdamW; None if the update must be made.
    """

    found_inf: Tensor | None = None
    # With this attribute torch's own optimizers show that they read `found_inf`.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps}
        super().__init__(params, defaults)
        self._dtype = dtype
        for group in self.param_groups:
            assert all(parameter.dim() == 2 for parameter in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None  # torch's signature has it, for optimizers that need the loss
        for group in self.param_groups:
            # Matrices of equal shape are updated together, since a few large operations are faster
            # than many small ones.
            weights_by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    weights_by_shape.setdefault(parameter.shape, []).append(parameter)
            for weights in weights_by_shape.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update n matrices of equal shape, which are in one parameter group.

        The `_foreach` functions of torch do an operation on each tensor of a list, by fewer kernels
        than a loop.
        """
        rows, columns = weights[0].shape
        # The rows of a tall orthogonal matrix have norms of about sqrt(columns / rows). This factor
        # makes the norms 1, so that each output changes as much as that of a square matrix.
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        momenta = [self.momentum(weight) for weight in weights]
        # `step` has chosen weights that have gradients; the condition is for mypy.
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        update_factor: float | Tensor = 1.0
        if self.found_inf is not None:
            # `found_inf` stays on the device, since the host would have to wait to read it. If it
            # is 1, the factor 0 skips the update.
            update_factor = 1.0 - self.found_inf
            # The momenta have to stay as they are if the update is skipped.
            gradients = self._finite_gradients(gradients, momenta, self.found_inf)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        # Nesterov's momentum looks one step ahead: the direction of the update is the new average
        # with the gradient averaged in once more.
        directions = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        orthogonal = orthogonalize(directions.to(self._dtype), group["steps"])  # (n, rows, columns)
        updates = update_factor * rate * orthogonal.to(directions.dtype)
        # Weight decay is decoupled: it shrinks the weights, and does not enter the momenta.
        decay = update_factor * group["lr"] * group["weight_decay"]
        torch._foreach_mul_(weights, 1 - decay)
        torch._foreach_sub_(weights, list(updates.unbind()))

    @staticmethod
    def _finite_gradients(
        gradients: list[Tensor], momenta: list[Tensor], found_inf: Tensor
    ) -> list[Tensor]:
        """Return the gradients, or the momenta if `found_inf` is 1.

        The average of the momenta with themselves leaves the momenta as they are. It would not be
        enough to multiply the gradients by 0, since 0 times an infinite gradient is NaN.
        """
        pairs = zip(gradients, momenta, strict=True)
        return [torch.where(found_inf > 0, momentum, gradient) for gradient, momentum in pairs]

    def momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]
