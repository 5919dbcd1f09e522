"""Build the optimizers that `optim.name` can name, and save and load their states."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.system.errors import ConfigError
from gpt.training.eager import AdamW
from gpt.training.muon import Muon
from gpt.training.training_state import check_like


class CombinedOptimizer:
    """Steps, saves and loads several optimizers as one; each has a name and its own parameters.

    `torch.amp.GradScaler` accepts this class as an optimizer, since it has the attributes that
    GradScaler reads and sets: `param_groups`, `grad_scale`, `found_inf`,
    `_step_supports_amp_scaling` and `step`.

    Attributes:
        grad_scale: None, since gradients are unscaled before they are clipped.
        found_inf: a tensor on the device, which is 1 if the next update must be skipped; None if
            the update must be made. `found_inf` and `grad_scale` have defaults in the class, since
            GradScaler sets them on the object for a step and then deletes them there.
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
            if _is_fused(optimizer):
                # The optimizer skips the update on the device, so that the host need not wait.
                optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]
                optimizer.step()
            elif self.found_inf is None or not bool(self.found_inf):
                # torch's other optimizers cannot skip an update, and raise an error if they have an
                # attribute `found_inf`. So the host reads the value with `bool`, which waits for
                # the device.
                optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether every optimizer reads `found_inf`, so that GradScaler need not wait for it."""
        return all(map(_is_fused, self.optimizers.values()))

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, but keep the present hyperparameters.

        Raises:
            KeyError: an optimizer, or a part of its state, is missing.
            ValueError: the state belongs to other parameters, or a kernel could not read it.
        """
        for name, optimizer in self.optimizers.items():
            _load_state(optimizer, state[name])


def _load_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore the state of one optimizer; see `CombinedOptimizer.load_state_dict`."""
    groups = optimizer.state_dict()["param_groups"]
    saved_groups = saved["param_groups"]
    # The state of an optimizer of torch identifies parameters by numbers, counted over all groups.
    saved_numbers = [group["params"] for group in saved_groups]
    if saved_numbers != [group["params"] for group in groups]:
        raise ValueError("the optimizer has different parameters")
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    # A parameter that never had a gradient has no state, so that numbers may be missing. But each
    # number in the state must be that of a parameter.
    unknown_numbers = saved["state"].keys() - set(range(len(parameters)))
    if unknown_numbers:
        raise ValueError(
            f"the saved state has moments of parameter {min(unknown_numbers)}, which does not exist"
        )
    names = _state_names(optimizer)
    # Only kernels read states without a check of their sizes: those of this package, and torch's
    # fused ones. Other optimizers of plugins may keep values of any kind and shape.
    if names is not None or _is_fused(optimizer):
        for number, entry in saved["state"].items():
            _check_entry(entry, parameters[number], names)
    # The hyperparameters stay those of the present configuration. Only the learning rate is
    # restored, which every step sets from the schedule: a checkpoint that is saved before the next
    # step then has the same rate as the loaded one.
    for group, saved_group in zip(groups, saved_groups, strict=True):
        group["lr"] = float(saved_group["lr"])
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})


def _is_fused(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is one of torch's fused ones.

    These skip their update if their attribute `found_inf` is 1, and torch marks them as such with
    the attribute that is read here.
    """
    return getattr(optimizer, "_step_supports_amp_scaling", False)


Builder = Callable[[GPT, OptimConfig, torch.device, torch.dtype], dict[str, Optimizer]]
"""Builds the optimizers of a model, by name, from `optim`, the device and its fastest dtype."""


def build_optimizer(
    model: GPT, config: OptimConfig, device: torch.device, fast_dtype: torch.dtype = torch.float32
) -> CombinedOptimizer:
    """Build the optimizer that `config.name` names in `OPTIMIZERS`.

    Matrices and embeddings have weight decay, vectors (norm gains, biases) do not. Every step sets
    the learning rate of a parameter group to `schedule.learning_rate` times the group's
    `lr_factor`.

    Args:
        fast_dtype: type in which Muon's Newton-Schulz iterations compute.
    """
    # `OPTIMIZERS` has functions that build the optimizers of this package, and classes of plugins.
    builder_or_class = OPTIMIZERS[config.name]
    if not isinstance(builder_or_class, type):
        return CombinedOptimizer(builder_or_class(model, config, device, fast_dtype))
    groups = decayed(model.parameters(), config)
    try:
        optimizer = builder_or_class(groups, config)
    except TypeError as error:  # the plugin's class may need other arguments
        raise ConfigError(
            f"optim.name: {config.name} cannot be made from groups and config: {error}"
        ) from error
    return CombinedOptimizer({config.name: optimizer})


def decayed(parameters: Iterable[Tensor], config: OptimConfig) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and embeddings with weight decay, vectors without.

    Every step multiplies the scheduled learning rate by the `lr_factor` of a group. It is 1 here,
    since the schedule is that of these groups; only Muon's group has another factor.
    """
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    # `Module.parameters` yields a weight once even if several modules share it, as a tied head and
    # the embedding do.
    for parameter in parameters:
        if parameter.dim() >= 2:
            matrices.append(parameter)
        else:
            vectors.append(parameter)
    return [
        {"params": matrices, "weight_decay": config.weight_decay, "lr_factor": 1.0},
        {"params": vectors, "weight_decay": 0.0, "lr_factor": 1.0},
    ]


def _adamw(parameters: Iterable[Tensor], config: OptimConfig, device: torch.device) -> Optimizer:
    fused = device.type in ("cpu", "cuda")  # torch has a fused kernel for these devices
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
    # Parameters are compared by identity, since `==` compares the elements of tensors.
    matrix_ids = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in matrix_ids]
    muon = Muon(matrices, config.muon_rate, weight_decay=config.weight_decay, dtype=fast_dtype)
    # The peak of the schedule is AdamW's learning rate. With this factor it becomes Muon's.
    muon.param_groups[0]["lr_factor"] = config.muon_rate / config.learning_rate
    return {"muon": muon, "adamw": _adamw(rest, config, device)}


OPTIMIZERS: dict[str, Builder | type[Optimizer]] = {"adamw": build_adamw, "muon": build_muon}
"""By `optim.name`: a builder, or a class, which is called with parameter groups and the config."""


def _state_names(optimizer: Optimizer) -> set[str] | None:
    """Return the names of what an optimizer keeps for each parameter.

    None means that it may keep anything, as an optimizer of a plugin.
    """
    if type(optimizer) is Muon:
        return {"momentum"}
    if not isinstance(optimizer, torch.optim.AdamW) or optimizer.defaults["amsgrad"]:
        return None
    # A plugin's subclass of AdamW with a `step` of its own may keep other values. torch wraps the
    # `step` of each class of optimizers, so that the functions inside are compared.
    step = inspect.unwrap(type(optimizer).step)
    is_own_step = step is not inspect.unwrap(torch.optim.AdamW.step)
    return None if is_own_step else {"step", "exp_avg", "exp_avg_sq"}


def _check_entry(entry: dict[str, Any], parameter: Tensor, names: set[str] | None) -> None:
    """Check the saved state of a parameter.

    Args:
        entry: the saved values, by name.
        names: the names that the state must have; None for any names.

    Raises:
        ValueError: the names differ, or a tensor does not have the parameter's shape and dtype.
    """
    if names is not None and entry.keys() != names:
        listed = ", ".join(sorted(names))
        raise ValueError(f"the optimizer keeps {listed} of a parameter, not {', '.join(entry)}")
    # AdamW counts its steps in a tensor of one number, whose type is torch's default dtype, but at
    # least float32: a narrower type could not count far enough.
    step_dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    expected_step = torch.zeros((), dtype=step_dtype)
    for name, value in entry.items():
        is_number = isinstance(value, int | float)
        # The optimizer of a plugin may count its steps in a plain number.
        if is_number and names is None:
            continue
        expected = expected_step if name == "step" else parameter
        check_like(name, value, expected)
