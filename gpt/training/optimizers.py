"""Optimizers: `OPTIMIZERS`, by the name in `optim.name`."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.system.errors import ConfigError
from gpt.training.muon import Muon
from gpt.training.training_state import check_like


class CombinedOptimizer:
    """Steps, saves and loads several optimizers, by name, each with parameters of its own, as one."""

    grad_scale: Tensor | None = None
    """Set by GradScaler; None, since gradients are unscaled before they are clipped."""

    def __init__(self, optimizers: dict[str, Optimizer]) -> None:
        self.optimizers = optimizers
        self._found_inf: Tensor | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    @property
    def has_moments(self) -> bool:
        """Whether every optimizer has made a step."""
        return all(optimizer.state for optimizer in self.optimizers.values())

    def step(self) -> None:
        """Update all parameters, but for an optimizer that does not read `found_inf` itself where that is set."""
        for optimizer in self.optimizers.values():
            if _reads_found_inf(optimizer) or self.found_inf is None or not bool(self.found_inf):
                optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none)

    @property
    def found_inf(self) -> Tensor | None:
        """1, on the device, if the next update must be skipped; None: unset."""
        return self._found_inf

    @found_inf.setter
    def found_inf(self, skip: Tensor | None) -> None:
        self._found_inf = skip
        # torch's others refuse to step with it
        for optimizer in filter(_reads_found_inf, self.optimizers.values()):
            optimizer.found_inf = skip  # type: ignore[attr-defined]

    @found_inf.deleter
    def found_inf(self) -> None:
        self.found_inf = None

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether every optimizer reads `found_inf`; GradScaler then sets it and does not synchronize."""
        return all(map(_reads_found_inf, self.optimizers.values()))

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, but keep the present hyperparameters."""
        for name, optimizer in self.optimizers.items():
            present, saved = optimizer.state_dict()["param_groups"], state[name]["param_groups"]
            if [group["params"] for group in saved] != [group["params"] for group in present]:
                raise ValueError("the optimizer has different parameters")
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            # a parameter without a gradient has no state, but none has more
            if unknown := state[name]["state"].keys() - set(range(len(parameters))):
                raise ValueError(f"the optimizer has moments of a parameter {min(unknown)}, which is not there")
            names = next((names for kind, names in STATES.items() if isinstance(optimizer, kind)), None)
            entries = {number: _checked(e, parameters[number], names) for number, e in state[name]["state"].items()}
            # the rates are the last step's
            groups = [{**group, "lr": float(last["lr"])} for group, last in zip(present, saved, strict=True)]
            optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _reads_found_inf(optimizer: Optimizer) -> bool:
    return getattr(optimizer, "_step_supports_amp_scaling", False)


Builder = Callable[[GPT, OptimConfig, torch.device, torch.dtype], dict[str, Optimizer]]


def build_optimizer(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype = torch.float32
) -> CombinedOptimizer:
    """Build the optimizer that `config.name` names in `OPTIMIZERS`.

    Matrices and embeddings are decayed, vectors (norm gains, biases) are not. Every step sets the learning rate of a
    group to `schedule.learning_rate` times its `lr_factor`. Muon's Newton-Schulz iterations run in `fast_dtype`.
    """
    part = OPTIMIZERS[config.name]
    if not isinstance(part, type):
        return CombinedOptimizer(part(model, config, device, fast_dtype))
    try:
        return CombinedOptimizer({config.name: part(decayed(model.parameters(), config), config)})
    except TypeError as error:
        raise ConfigError(f"optim.name: {config.name} cannot be made from groups and config: {error}") from error


def decayed(parameters: Iterable[Tensor], config: OptimConfig) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and embeddings with weight decay, vectors without."""
    # a tied weight appears once
    each = list(parameters)
    return [
        {"params": [p for p in each if p.dim() >= 2], "weight_decay": config.weight_decay, "lr_factor": 1.0},
        {"params": [p for p in each if p.dim() < 2], "weight_decay": 0.0, "lr_factor": 1.0},
    ]


def _adamw(parameters: Iterable[Tensor], config: OptimConfig, device: torch.device) -> Optimizer:
    fused = device.type in ("cpu", "cuda")  # where torch has the kernel
    return AdamW(decayed(parameters, config), lr=config.learning_rate, betas=config.betas, fused=fused)


def build_adamw(model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype) -> dict[str, Optimizer]:
    """Build AdamW (Loshchilov and Hutter 2017, 1711.05101)."""
    return {"adamw": _adamw(model.parameters(), config, device)}


def build_muon(model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype) -> dict[str, Optimizer]:
    """Build Muon for the matrices of the blocks, and AdamW for the rest."""
    matrices = [parameter for parameter in model.h.parameters() if parameter.dim() == 2]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = Muon(matrices, config.muon_rate, weight_decay=config.weight_decay, dtype=fast_dtype)
    muon.param_groups[0]["lr_factor"] = config.muon_rate / config.learning_rate
    return {"muon": muon, "adamw": _adamw(rest, config, device)}


OPTIMIZERS: dict[str, Builder | type[Optimizer]] = {"adamw": build_adamw, "muon": build_muon}
"""By `optim.name`: the class of an optimizer, made from parameter groups and the configuration, or a builder."""


STATES: dict[type[Optimizer], set[str]] = {AdamW: {"step", "exp_avg", "exp_avg_sq"}, Muon: {"momentum"}}
"""What an optimizer keeps of each parameter; fused kernels read it unchecked."""


def _checked(entry: dict[str, Any], parameter: Tensor, names: set[str] | None) -> dict[str, Any]:
    """Return the saved state of a parameter.

    Raises:
        ValueError: it has other `names` (None: a plugin's optimizer tells none), or is neither a tensor of the
            parameter's shape nor a number.
    """
    if names is not None and entry.keys() != names:
        raise ValueError(f"the optimizer keeps {', '.join(sorted(names))} of a parameter, not {', '.join(entry)}")
    scalar = torch.zeros((), dtype=torch.promote_types(torch.get_default_dtype(), torch.float32))
    for name, value in entry.items():
        if names is not None or not isinstance(value, int | float):
            check_like(name, value, scalar if name == "step" else parameter)
    return entry
