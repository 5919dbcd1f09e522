"""Update parameters by the compiled library, as AdamW of torch and Muon do."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpt.native.contract import floats
from gpt.native.training.bindings import CUpdatedTensor, Kernels


@dataclass
class Updated:
    """A parameter with what its optimizer keeps of it.

    Attributes:
        second_moment: None for Muon, which has a momentum only.
        step: AdamW's count of steps, a tensor of one number; None for Muon.
    """

    weight: Tensor
    gradient: Tensor
    first_moment: Tensor
    second_moment: Tensor | None
    step: Tensor | None
    group: dict[str, Any]


def update_natively(kernels: Kernels, parameters: list[Updated]) -> None:
    """Make one update of all parameters, and count it in their `step`."""
    steps = [updated.step for updated in parameters if updated.step is not None]
    if steps:
        torch._foreach_add_(steps, 1)
    structures = (CUpdatedTensor * len(parameters))()
    for structure, updated in zip(structures, parameters, strict=True):
        _fill_in(structure, updated)
    kernels.update(structures)


def _fill_in(structure: CUpdatedTensor, updated: Updated) -> None:
    group = updated.group
    structure.weight = floats(updated.weight.detach())
    structure.gradient = floats(updated.gradient)
    structure.first_moment = floats(updated.first_moment)
    structure.count = updated.weight.numel()
    structure.rate = group["lr"]
    structure.decay = 1 - group["lr"] * group["weight_decay"]
    if updated.step is None or updated.second_moment is None:
        structure.is_matrix = 1
        structure.rows, structure.columns = updated.weight.shape
        structure.steps = group["steps"]
        structure.beta_1 = group["momentum"]
        return
    step = float(updated.step)
    beta_1, beta_2 = group["betas"]
    structure.second_moment = floats(updated.second_moment)
    structure.beta_1 = beta_1
    structure.beta_2 = beta_2
    structure.eps = group["eps"]
    structure.correction_1 = 1 - beta_1**step
    structure.correction_2 = math.sqrt(1 - beta_2**step)
