"""Muon: momentum whose updates are orthogonalized.

Jordan et al. 2024, kellerjordan.github.io/posts/muon.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration: each singular value s becomes a s + b s^3 + c s^5.

They are Jordan's, which raise small singular values fastest. The larger ones then lie around 1, and
do not converge to it, which training does not need.
"""


def orthogonalize(matrices: Tensor, steps: int) -> Tensor:
    """Approximate the closest matrices whose singular values are 1.

    Args:
        matrices: (n, rows, columns), in the dtype to compute in.
        steps: Newton-Schulz iterations; 5 bring singular values to about 0.7 to 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices
    is_tall = x.size(-2) > x.size(-1)
    if is_tall:  # of the Gram matrices x x^T and x^T x, the smaller one costs less
        x = x.mT
    # The iteration needs singular values of at most 1, and the Frobenius norm is at least the
    # largest one. The bound of the norm keeps a gradient of zeros from becoming NaN.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT  # (n, m, m), m the smaller of rows and columns
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G^2
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a X + (b G + c G^2) X
    return x.mT if is_tall else x


class Muon(Optimizer):
    """Muon for matrices; those of equal shape are orthogonalized as a batch.

    Args:
        lr: learning rate; an update has spectral norm of about `lr * sqrt(max(1, rows / columns))`.
        momentum: Nesterov's momentum: the share of the past in a moving average of gradients.
        weight_decay: decoupled; weights shrink by the factor 1 - lr * weight_decay.
        steps: Newton-Schulz iterations.
        dtype: type in which the Newton-Schulz iterations compute; bfloat16 suffices.

    Attributes:
        found_inf: 1, on the device, if this update must be skipped, as in fused AdamW; None means
            that it need not.
    """

    found_inf: Tensor | None = None
    # by this attribute torch's own optimizers say that they read `found_inf`
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
        assert closure is None
        for group in self.param_groups:
            # Few large operations are faster than many small ones.
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for weights in by_shape.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update n matrices of equal shape."""
        rows, columns = weights[0].shape
        # The rows of a tall orthogonal matrix have norms of about sqrt(columns / rows), which the
        # factor makes 1: so each output changes as much as that of a square matrix.
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        momenta = [self._momentum(weight) for weight in weights]
        # `step` has chosen weights that have gradients; the condition is for mypy.
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        keep: float | Tensor = 1.0
        if self.found_inf is not None:
            # A factor of 0 skips the update. The host need not read `found_inf`, and so need not
            # wait for the device.
            keep = 1.0 - self.found_inf
            # Where the update is skipped, the momenta take the place of the gradients, so that
            # averaging leaves the momenta as they are.
            gradients = self._finite_gradients(gradients, momenta, self.found_inf)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        # Nesterov's momentum looks one step ahead: it averages with the gradient once more.
        directions = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        orthogonal = orthogonalize(directions.to(self._dtype), group["steps"])  # (n, rows, columns)
        updates = keep * rate * orthogonal.to(directions.dtype)
        # Weight decay is decoupled: it shrinks the weights, and has no part in the momenta.
        torch._foreach_mul_(weights, 1 - keep * group["lr"] * group["weight_decay"])
        torch._foreach_sub_(weights, list(updates.unbind()))

    @staticmethod
    def _finite_gradients(
        gradients: list[Tensor], momenta: list[Tensor], found_inf: Tensor
    ) -> list[Tensor]:
        """Return the gradients, or the momenta if `found_inf` is 1.

        Averaged with themselves, the momenta stay as they are. To multiply the gradients by 0 would
        not do, since 0 times an infinite gradient is NaN.
        """
        pairs = zip(gradients, momenta, strict=True)
        return [torch.where(found_inf > 0, momentum, gradient) for gradient, momentum in pairs]

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]
