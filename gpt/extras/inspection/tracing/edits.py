"""Edits of named activations: replace, scale or zero (ablate) one, or one head of it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gpt.extras.inspection.tracing.activation_names import Activation
from gpt.system.errors import InputError


@dataclass(frozen=True)
class Edit:
    """An edit of an activation, or of one head of it: `change` maps a tensor to another of the same shape and type."""

    change: Callable[[Tensor], Tensor]
    head: int | None = None

    def apply(self, name: str, activation: Activation, x: Tensor) -> Tensor:
        """Return the edited tensor, a new one; the change receives a copy of `x`, or of one head."""
        if self.head is None:
            return _checked(name, self.change(x.clone()), x)
        axis = activation.head_axis
        if axis is None:
            raise InputError(f"{name} has no heads; its axes are {activation.axes}")
        if not 0 <= self.head < x.size(axis):
            raise InputError(f"{name} has heads 0 to {x.size(axis) - 1}, not {self.head}")
        part = x.select(axis, self.head)
        edited = x.clone()
        edited.select(axis, self.head).copy_(_checked(name, self.change(part.clone()), part))
        return edited


def zero(head: int | None = None) -> Edit:
    """Replace the activation by zeros, even where it is infinite (ablation)."""
    return replace(0.0, head)


def scale(factor: float, head: int | None = None) -> Edit:
    """Multiply the activation by a factor."""
    return Edit(lambda x: x * factor, head)


def replace(value: Tensor | float, head: int | None = None) -> Edit:
    """Replace the activation by a value, broadcast if it has fewer dimensions: patching, mean ablation."""
    return Edit(lambda x: x.copy_(value) if isinstance(value, Tensor) else x.fill_(value), head)


def _checked(name: str, new: object, old: Tensor) -> Tensor:
    if not isinstance(new, Tensor):
        raise InputError(
            f"an edit of {name} gave {type(new).__name__}, not a tensor; return the new tensor"
        )
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        raise InputError(
            f"an edit of {name} gave {tuple(new.shape)} {new.dtype} for {tuple(old.shape)} {old.dtype}"
        )
    return new
