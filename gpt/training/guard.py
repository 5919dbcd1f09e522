"""Stops a run before a NaN or an infinity reaches the weights, without reading the GPU at every step."""

import torch
from torch import Tensor

from gpt.errors import NonFiniteError


class NonFiniteGuard:
    """Remembers, on the device, the first step whose loss or gradient was not finite.

    From that step on `blocked` is 1, and the fused optimizer, which takes it as `found_inf`, leaves
    the weights alone. `check` reads it back: on a CPU at every step, where that costs nothing, on a
    GPU when something else is read anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self.reads_are_free = device.type in ("cpu", "mps")  # MPS has no fused optimizer that could be told
        self.blocked = torch.zeros((), device=device)
        self._first_bad = torch.full((), -1, dtype=torch.long, device=device)

    def observe(self, step: int, loss: Tensor, gradient_norm: Tensor) -> None:
        """Note one step, counted from 0, after its backward pass and before its update."""
        bad = ~(torch.isfinite(loss) & torch.isfinite(gradient_norm))
        self._first_bad = torch.where((self._first_bad < 0) & bad, step, self._first_bad)
        self.blocked = torch.maximum(self.blocked, bad.float())

    def check(self) -> None:
        """Raise if any step so far was bad.

        Raises:
            NonFiniteError: names the step; no update was made in it or since.
        """
        step = int(self._first_bad)
        if step >= 0:
            raise NonFiniteError(
                f"the loss or a gradient is not finite at step {step}; the update was not made. "
                "Try a lower optim.learning_rate, run.dtype=float32 or optim.grad_clip=1.0"
            )
