"""Edits of named activations: replace, scale or zero (ablate) one, or one head of it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gpt.extras.inspection.tracing.activation_names import Activation
from gpt.system.errors import InputError


@dataclass(frozen=True)
class Edit:
    """An edit of an activation, or of one head of it."""

    change: Callable[[Tensor], Tensor]  # maps a tensor to one of the same shape and type
    head: int | None = None  # None: all of the activation

    def apply(self, name: str, activation: Activation, x: Tensor) -> Tensor:
        """Return the edited tensor, a new one; `x` stays as it is, whatever `change` does."""
        if self.head is None:
            edited = self.change(x.clone())
            _require_like(name, edited, x)
            return edited
        axis = activation.head_axis
        if axis is None:
            raise InputError(f"{name} has no heads; its axes are {activation.axes}")
        if not 0 <= self.head < x.size(axis):
            raise InputError(f"{name} has heads 0 to {x.size(axis) - 1}, not {self.head}")
        of_head = x.select(axis, self.head)  # the shape of x without the axis of heads
        edited_head = self.change(of_head.clone())
        _require_like(name, edited_head, of_head)
        edited = x.clone()
        edited.select(axis, self.head).copy_(edited_head)
        return edited


def zero(head: int | None = None) -> Edit:
    """Replace the activation by zeros (ablation), even where it is infinite."""
    return replace(0.0, head)


def scale(factor: float, head: int | None = None) -> Edit:
    """Multiply the activation by a factor."""
    return Edit(lambda x: x * factor, head)


def replace(value: Tensor | float, head: int | None = None) -> Edit:
    """Replace the activation by a value: patching, mean ablation.

    A tensor with fewer dimensions is broadcast.
    """
    if isinstance(value, Tensor):
        return Edit(lambda x: x.copy_(value), head)
    return Edit(lambda x: x.fill_(value), head)


def _require_like(name: str, new: object, old: Tensor) -> None:
    """Raise InputError where an edit gave anything else than a tensor like the one before."""
    if not isinstance(new, Tensor):
        raise InputError(
            f"an edit of {name} gave {type(new).__name__}, not a tensor; return the new tensor"
        )
    if new.shape != old.shape or new.dtype != old.dtype:
        raise InputError(
            f"an edit of {name} gave {tuple(new.shape)} {new.dtype} for {tuple(old.shape)} "
            f"{old.dtype}"
        )
