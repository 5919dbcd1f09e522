"""Comparison of a written file with the model that it was written from."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from gpt.errors import InputError
from gpt.model import GPT, eval_mode

TOLERANCE = 1e-4
"""Root mean square of the difference between two computations in float32, relative to the logits' deviation."""
ROUNDING = 1e-6
"""Difference that is always allowed: logits may all be equal."""
MAX_PRODUCTS = 5 * 10**8
"""Multiplications by weights that a comparison costs at most, if that is 8 tokens or more."""


def window_of(model: GPT) -> Tensor:
    """Return the ids (T,) by which a file is compared with a model: random ones, always the same."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    length = min(model.config.block_size, max(8, MAX_PRODUCTS // max(1, parameters)))
    return torch.randint(model.vocab_size, (length,), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits_of(model: GPT, idx: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the logits (T, V) that the model as it is computes of ids (T,).

    `weights` stand in place of some parameters, as they are rounded in a file.

    Raises:
        InputError: the logits are not finite.
    """
    with eval_mode(model):
        batch = idx.to(next(model.parameters()).device).unsqueeze(0)
        logits: Tensor = functional_call(model, dict(weights or {}), (batch,))[0].cpu()
    if not logits.isfinite().all():
        raise InputError("the model's logits are not finite")
    return logits


def require_same(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> float:
    """Compare the logits (T, V) of a file with those of its model.

    Returns:
        The root mean square of their difference, relative to the deviation of the model's logits.

    Raises:
        InputError: it is above the tolerance.
    """
    deviation = expected.std(correction=0).item()
    difference = (found - expected).square().mean().sqrt().item() if found.shape == expected.shape else float("nan")
    if not difference <= tolerance * deviation + ROUNDING:
        raise InputError(
            f"the written file computes other logits than the model (they differ by {difference:.2g}, their deviation "
            f"is {deviation:.2g}): gpt/model was changed, or the format does not cover it"
        )
    return difference / deviation if deviation else 0.0
