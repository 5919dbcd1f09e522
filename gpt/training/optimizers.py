"""AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the rest."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.training.eager_optimizers import AdamW
from gpt.training.muon import Muon
from gpt.training.sharding import sharded_like
from gpt.training.training_state import check_like

MOMENTS: dict[type[Optimizer], tuple[str, ...]] = {AdamW: ("exp_avg", "exp_avg_sq"), Muon: ("momentum",)}
"""State tensors of each optimizer that have the shape of their parameter."""


class CombinedOptimizer:
    """Steps, saves and loads several optimizers, each with parameters of its own, as one.

    Args:
        optimizers: by name; the names are the keys of `state_dict`.
    """

    grad_scale: Tensor | None = None
    """Set by GradScaler; None, since gradients are unscaled before they are clipped."""

    def __init__(self, optimizers: dict[str, Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all optimizers; setting a value, such as `lr`, takes effect."""
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    @property
    def has_moments(self) -> bool:
        """Return whether every optimizer has made a step."""
        return all(optimizer.state for optimizer in self.optimizers.values())

    def step(self) -> None:
        """Update all parameters."""
        for optimizer in self.optimizers.values():
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none)

    @property
    def found_inf(self) -> Tensor | None:
        """Return 1, on the device, if fused optimizers must skip the next update; None: unset."""
        return getattr(next(iter(self.optimizers.values())), "found_inf", None)

    @found_inf.setter
    def found_inf(self, skip: Tensor | None) -> None:
        for optimizer in self.optimizers.values():
            optimizer.found_inf = skip  # type: ignore[attr-defined]

    @found_inf.deleter
    def found_inf(self) -> None:
        self.found_inf = None

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Return whether every optimizer reads `found_inf`; GradScaler then sets it and does not synchronize."""
        return all(getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in self.optimizers.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every optimizer by its name."""
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, but keep the present hyperparameters.

        Raises:
            KeyError, TypeError, ValueError: the state belongs to other optimizers or parameters.
        """
        for name, optimizer in self.optimizers.items():
            present = optimizer.state_dict()["param_groups"]
            _check_state(optimizer, present, state[name])
            rates = [float(group["lr"]) for group in state[name]["param_groups"]]  # the last step's
            entries = _sharded(optimizer, state[name]["state"])
            groups = [{**group, "lr": rate} for group, rate in zip(present, rates, strict=True)]
            optimizer.load_state_dict({"state": entries, "param_groups": groups})


def build_optimizer(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype = torch.float32
) -> CombinedOptimizer:
    """Build AdamW (Loshchilov and Hutter 2017, 1711.05101), or Muon for the blocks' matrices and AdamW for the rest.

    Matrices and embeddings are decayed, vectors (norm gains, biases) are not. Every step sets the learning rate of a
    group to `schedule.learning_rate` times its `lr_factor`. Muon's Newton-Schulz iterations run in `fast_dtype`.
    """
    if config.name == "adamw":
        parameters = list(model.parameters())  # a tied weight appears once
        return CombinedOptimizer({"adamw": _adamw(parameters, config, device)})
    matrices = [parameter for parameter in model.h.parameters() if parameter.dim() == 2]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = Muon(matrices, config.muon_rate, config.muon_momentum, config.muon_weight_decay, dtype=fast_dtype)
    muon.param_groups[0]["lr_factor"] = config.muon_rate / config.learning_rate
    return CombinedOptimizer({"muon": muon, "adamw": _adamw(rest, config, device)})


def _adamw(parameters: Sequence[Tensor], config: OptimConfig, device: torch.device) -> Optimizer:
    """Build AdamW, fused where torch has the kernel."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay, "lr_factor": 1.0},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "lr_factor": 1.0},
    ]
    fused = device.type in ("cpu", "cuda")
    return AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=fused)


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sharded(optimizer: Optimizer, entries: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the states of parameters, by number, with moments sharded like their parameter."""
    parameters, moments = _parameters_of(optimizer), MOMENTS[type(optimizer)]
    return {
        number: {**entry, **{name: sharded_like(entry[name], parameters[number]) for name in moments}}
        for number, entry in entries.items()
    }


def _check_state(optimizer: Optimizer, groups: list[dict[str, Any]], saved: dict[str, Any]) -> None:
    """Check that a state has the tensors that fused kernels read unchecked."""
    if [group["params"] for group in saved["param_groups"]] != [group["params"] for group in groups]:
        raise ValueError("the optimizer has different parameters")
    parameters = _parameters_of(optimizer)
    moments, entries = MOMENTS[type(optimizer)], saved["state"]
    if entries and entries.keys() != set(range(len(parameters))):  # empty before the first step
        raise ValueError(f"the optimizer has moments of {len(entries)} parameters instead of {len(parameters)}")
    for number, entry in entries.items():
        for name in moments:
            check_like(f"{name} of parameter {number}", entry[name], parameters[number])
        if isinstance(optimizer, AdamW):
            check_like(f"step of parameter {number}", entry["step"], torch.zeros(()))
        if unknown := entry.keys() - {*moments, "step"}:
            raise ValueError(f"the optimizer keeps no {unknown.pop()!r}")
