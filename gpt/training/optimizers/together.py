"""Two optimizers as one."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Together:
    """Steps several optimizers, each over parameters of its own, and saves them as one.

    Args:
        parts: by name; the names are the keys of the state.
    """

    grad_scale: Tensor | None = None
    """Set by GradScaler; None, since gradients are unscaled before they are clipped."""

    def __init__(self, parts: dict[str, Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts; writing into one, such as its `lr`, takes effect."""
        return [group for part in self.parts.values() for group in part.param_groups]

    def step(self) -> None:
        """One update of everything."""
        for part in self.parts.values():
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for part in self.parts.values():
            part.zero_grad(set_to_none)

    @property
    def found_inf(self) -> Tensor | None:
        """1 where updates are to be left out, read on the device only; None where nothing was said."""
        return getattr(next(iter(self.parts.values())), "found_inf", None)

    @found_inf.setter
    def found_inf(self, blocked: Tensor | None) -> None:
        for part in self.parts.values():
            part.found_inf = blocked  # type: ignore[attr-defined]

    @found_inf.deleter
    def found_inf(self) -> None:
        self.found_inf = None

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether every part reads `found_inf`: torch's GradScaler then sets it, instead of waiting for the device."""
        return all(getattr(part, "_step_supports_amp_scaling", False) for part in self.parts.values())

    def state_dict(self) -> dict[str, Any]:
        """Of every part, by its name."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, with the present hyper-parameters.

        Raises:
            KeyError, ValueError: it is of other parts or parameters.
        """
        for name, part in self.parts.items():
            part.load_state_dict(_with_present_options(part, state[name]))


def _with_present_options(part: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    kept = {"params", "lr"}  # of the saved state: how its tensors are numbered, and the last learning rate
    present = [{k: v for k, v in group.items() if k not in kept} for group in part.param_groups]
    groups = [old | own for old, own in zip(saved["param_groups"], present, strict=True)]
    return {**saved, "param_groups": groups}
