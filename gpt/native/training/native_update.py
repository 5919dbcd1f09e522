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
        first_moment: AdamW's mean of the gradients, or Muon's momentum.
        second_moment: AdamW's mean of the squared gradients; None for Muon.
        step: AdamW's number of updates, a tensor of one element; None for Muon.
        group: the parameter's group in the optimizer, with the hyperparameters.
    """

    weight: Tensor
    gradient: Tensor
    first_moment: Tensor
    second_moment: Tensor | None
    step: Tensor | None
    group: dict[str, Any]


def update_natively(kernels: Kernels, parameters: list[Updated]) -> None:
    """Make one update of all parameters, and count it in the `step` of those of AdamW."""
    steps = [updated.step for updated in parameters if updated.step is not None]
    if steps:
        torch._foreach_add_(steps, 1)
    structures = (CUpdatedTensor * len(parameters))()
    for structure, updated in zip(structures, parameters, strict=True):
        _fill_in(structure, updated)
    kernels.update(structures)


def _fill_in(structure: CUpdatedTensor, updated: Updated) -> None:
    """Write the addresses and hyperparameters of a parameter into a structure that C++ reads."""
    group = updated.group
    structure.weight = floats(updated.weight.detach())
    structure.gradient = floats(updated.gradient)
    structure.first_moment = floats(updated.first_moment)
    structure.count = updated.weight.numel()
    structure.rate = group["lr"]
    structure.decay = 1 - group["lr"] * group["weight_decay"]  # the factor of the weights
    if updated.step is None or updated.second_moment is None:
        structure.is_matrix = 1  # C++ updates matrices by Muon
        structure.rows, structure.columns = updated.weight.shape
        structure.steps = group["steps"]  # of the iteration that orthogonalizes the update
        structure.beta_1 = group["momentum"]
        return
    step = float(updated.step)
    beta_1, beta_2 = group["betas"]
    structure.second_moment = floats(updated.second_moment)
    structure.beta_1 = beta_1
    structure.beta_2 = beta_2
    structure.eps = group["eps"]
    # The moments begin at 0. These divisors correct that bias in the first moment, and in the root
    # of the second.
    structure.correction_1 = 1 - beta_1**step
    structure.correction_2 = math.sqrt(1 - beta_2**step)
