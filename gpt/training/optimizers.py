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
    """Steps, saves and loads several optimizers, by name, each with parameters of its own, as one.

    It has what `torch.amp.GradScaler` reads and sets of an optimizer: `param_groups`, `grad_scale`,
    `found_inf`, `_step_supports_amp_scaling` and `step`.

    Attributes:
        grad_scale: None, since gradients are unscaled before they are clipped.
        found_inf: 1, on the device, if the next update must be skipped; None means that it need
            not. Both are attributes of the class too, since GradScaler sets them on the object for
            a step, and then deletes them there.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, optimizers: dict[str, Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    @property
    def has_moments(self) -> bool:
        """Whether every optimizer has made a step."""
        return all(optimizer.state for optimizer in self.optimizers.values())

    def step(self) -> None:
        """Update all parameters, unless `found_inf` is 1."""
        for optimizer in self.optimizers.values():
            if _reads_found_inf(optimizer):
                # The optimizer skips the update on the device, for which nobody has to wait.
                optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]
                optimizer.step()
            elif self.found_inf is None or not bool(self.found_inf):
                # torch's other optimizers refuse to step while they have the attribute, so it is
                # read here, which waits for the device.
                optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether every optimizer reads `found_inf`: GradScaler then sets it, and need not wait."""
        return all(map(_reads_found_inf, self.optimizers.values()))

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, but keep the present hyperparameters.

        Raises:
            KeyError: the state has no optimizer, or no part of one, of a name.
            ValueError: it belongs to other parameters, or is not one that a kernel can read.
        """
        for name, optimizer in self.optimizers.items():
            _load_state(optimizer, state[name])


def _load_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore the state of one optimizer; see `CombinedOptimizer.load_state_dict`."""
    groups = optimizer.state_dict()["param_groups"]
    saved_groups = saved["param_groups"]
    # In a state, parameters are named by numbers, counted over all groups.
    if [group["params"] for group in saved_groups] != [group["params"] for group in groups]:
        raise ValueError("the optimizer has different parameters")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # A parameter that never had a gradient has no state: numbers may be missing, but not unknown.
    unknown = saved["state"].keys() - set(range(len(parameters)))
    if unknown:
        raise ValueError(
            f"the saved state has moments of parameter {min(unknown)}, which does not exist"
        )
    names = _state_names(optimizer)
    for number, entry in saved["state"].items():
        _check_entry(entry, parameters[number], names)
    # All hyperparameters stay those of the present configuration, except the learning rate: it is
    # that of the last step until the next step sets it.
    for group, saved_group in zip(groups, saved_groups, strict=True):
        group["lr"] = float(saved_group["lr"])
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})


def _reads_found_inf(optimizer: Optimizer) -> bool:
    """Return whether an optimizer skips its update where its attribute `found_inf` is 1.

    The fused optimizers of torch do, and say so by the attribute that is read here.
    """
    return getattr(optimizer, "_step_supports_amp_scaling", False)


Builder = Callable[[GPT, OptimConfig, torch.device, torch.dtype], dict[str, Optimizer]]
"""Builds the optimizers of a model, by name, from the configuration, the device and its fastest
dtype."""


def build_optimizer(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype = torch.float32
) -> CombinedOptimizer:
    """Build the optimizer that `config.name` names in `OPTIMIZERS`.

    Matrices and embeddings are decayed, vectors (norm gains, biases) are not. Every step sets the
    learning rate of a group to `schedule.learning_rate` times its `lr_factor`. Muon's Newton-Schulz
    iterations run in `fast_dtype`.
    """
    # An optimizer of the package has a function that builds it; a plugin gives a class.
    builder_or_class = OPTIMIZERS[config.name]
    if not isinstance(builder_or_class, type):
        return CombinedOptimizer(builder_or_class(model, config, device, fast_dtype))
    groups = decayed(model.parameters(), config)
    try:
        optimizer = builder_or_class(groups, config)
    except TypeError as error:  # a plugin's class may want other arguments
        raise ConfigError(
            f"optim.name: {config.name} cannot be made from groups and config: {error}"
        ) from error
    return CombinedOptimizer({config.name: optimizer})


def decayed(parameters: Iterable[Tensor], config: OptimConfig) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and embeddings with weight decay, vectors without."""
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for parameter in parameters:  # a module's `parameters` yields a tied weight once
        if parameter.dim() >= 2:
            matrices.append(parameter)
        else:
            vectors.append(parameter)
    return [
        {"params": matrices, "weight_decay": config.weight_decay, "lr_factor": 1.0},
        {"params": vectors, "weight_decay": 0.0, "lr_factor": 1.0},
    ]


def _adamw(parameters: Iterable[Tensor], config: OptimConfig, device: torch.device) -> Optimizer:
    fused = device.type in ("cpu", "cuda")  # where torch has the kernel
    groups = decayed(parameters, config)
    return AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)


def build_adamw(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype
) -> dict[str, Optimizer]:
    """Build AdamW (Loshchilov and Hutter 2017, 1711.05101)."""
    return {"adamw": _adamw(model.parameters(), config, device)}


def build_muon(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype
) -> dict[str, Optimizer]:
    """Build Muon for the matrices of the blocks, and AdamW for the rest."""
    matrices = [parameter for parameter in model.h.parameters() if parameter.dim() == 2]
    # by identity, since `==` compares the elements of tensors
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = Muon(matrices, config.muon_rate, weight_decay=config.weight_decay, dtype=fast_dtype)
    # one schedule, in units of the peak of AdamW, gives the rates of both
    muon.param_groups[0]["lr_factor"] = config.muon_rate / config.learning_rate
    return {"muon": muon, "adamw": _adamw(rest, config, device)}


OPTIMIZERS: dict[str, Builder | type[Optimizer]] = {"adamw": build_adamw, "muon": build_muon}
"""By `optim.name`: a builder, or a class, which is called with parameter groups and the config."""
STATES: dict[type[Optimizer], set[str]] = {
    AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum"},
}
"""What an optimizer keeps of each parameter; fused kernels read it unchecked."""


def _state_names(optimizer: Optimizer) -> set[str] | None:
    """Return the names of what an optimizer keeps of each parameter.

    None means that it is an optimizer of a plugin, which may keep anything.
    """
    for kind, names in STATES.items():
        if isinstance(optimizer, kind):
            return names
    return None


def _check_entry(entry: dict[str, Any], parameter: Tensor, names: set[str] | None) -> None:
    """Check the saved state of a parameter.

    Raises:
        ValueError: it has other `names`, if they are known, or is neither a tensor of the
            parameter's shape nor a number.
    """
    if names is not None and entry.keys() != names:
        expected = ", ".join(sorted(names))
        raise ValueError(f"the optimizer keeps {expected} of a parameter, not {', '.join(entry)}")
    # AdamW counts its steps in a tensor of one number, of the default type but not below float32
    step_dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    step = torch.zeros((), dtype=step_dtype)
    for name, value in entry.items():
        is_number = isinstance(value, int | float)
        # The optimizer of a plugin may count its steps in a plain number.
        if is_number and names is None:
            continue
        check_like(name, value, step if name == "step" else parameter)
