"""What an optimizer keeps of each parameter: found by a step on a toy, so that no optimizer has to declare it."""

import copy
import io
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpt.distributed.sharding import shard_like
from gpt.errors import ConfigError, first_line
from gpt.training.training_state import check_like


def check_restorable(name: str, optimizer: Optimizer) -> None:
    """Raise ConfigError unless a step on toy parameters is the same after the state was saved and restored."""
    try:
        first, toys = _with_toys(optimizer)
        first.step()
        weights, state = [toy.detach().clone() for toy in toys], _saved(first)
        first.step()
        second, restored = _with_toys(optimizer)
        for toy, weight in zip(restored, weights, strict=True):
            toy.data.copy_(weight)
        second.load_state_dict(state)
        second.step()
    except Exception as error:
        raise ConfigError(
            f"optim.name: {name} cannot train: a step on a toy parameter raises {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    if not all(map(torch.equal, toys, restored)):
        raise ConfigError(
            f"optim.name: {name} cannot be resumed: after its state is saved and restored it makes another step; keep "
            "all of it in self.state[parameter]"
        )


def restore_like(optimizer: Optimizer, entries: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Check the saved state of parameters, by number, and return it with moments sharded like their parameter.

    Moments are the tensors of a parameter's shape. Fused kernels read them unchecked.
    """
    stepped, toys = _with_toys(optimizer)
    stepped.step()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        number: _restored(number, entry, parameters[number], stepped.state[toys[number]], toys[number])
        for number, entry in entries.items()
    }


def _restored(
    number: int, entry: dict[str, Any], parameter: Tensor, expected: dict[str, Any], toy: Tensor
) -> dict[str, Any]:
    if unknown := entry.keys() - expected.keys():
        raise ValueError(f"the optimizer keeps no {unknown.pop()!r}")
    restored = dict(entry)
    for name, value in expected.items():
        if isinstance(value, Tensor):
            is_moment = value.shape == toy.shape
            check_like(f"{name} of parameter {number}", entry[name], parameter if is_moment else value)
            if is_moment:
                restored[name] = shard_like(entry[name], parameter)
        elif type(entry[name]) is not type(value):
            raise TypeError(f"{name} of parameter {number} is {entry[name]!r}, expected {type(value).__name__}")
    return restored


def _with_toys(optimizer: Optimizer) -> tuple[Optimizer, list[Tensor]]:
    """Return a copy of an optimizer with other parameters, and the one that stands for each of its own.

    Parameters of a group with as many dimensions have one in common. It has a gradient.
    """
    made: dict[tuple[int, int], Tensor] = {}
    toys, groups = [], []
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if (index, parameter.dim()) not in made:
                made[index, parameter.dim()] = _toy(parameter)
            toys.append(made[index, parameter.dim()])
        own = [toy for (number, _), toy in made.items() if number == index]
        groups.append({**copy.deepcopy({k: v for k, v in group.items() if k != "params"}), "params": own})
    other = {k: v for k, v in vars(optimizer).items() if k not in ("state", "param_groups")}
    probe: Optimizer = object.__new__(type(optimizer))
    vars(probe).update(copy.deepcopy(other), state=defaultdict(dict), param_groups=groups)
    return probe, toys


def _toy(parameter: Tensor) -> Tensor:
    shape = tuple(min(size, 3 + axis) for axis, size in enumerate(parameter.shape))
    values = torch.linspace(-1, 1, math.prod(shape), dtype=parameter.dtype, device=parameter.device).view(shape)
    toy = torch.nn.Parameter(values)
    toy.grad = values.flip(0).cos()
    return toy


def _saved(optimizer: Optimizer) -> dict[str, Any]:
    """Return the state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state
