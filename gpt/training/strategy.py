"""How a step calls its model: directly, or together with other processes (`gpt.training.parallel`)."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn


class Strategy:
    """The model as one process trains it; a subclass combines what several compute.

    Args:
        forward: called for the forward pass, token ids (B, T) -> logits (B, T, V).
    """

    def __init__(self, forward: nn.Module) -> None:
        self.forward = forward

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context whose backward passes leave gradients in this process: all but the last of a step."""
        return nullcontext()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the parts that other processes have."""
        return tensor

    def all_reduce_mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor over processes."""
        return tensor

    def mean_count(self, count: int) -> float:
        """Return the mean of a number over processes."""
        return float(count)
