"""Show, before the first step, that native blocks compute what the blocks compute in whose place they stand.

Both run the same model on one sequence, forward and backward, with the same dropout masks. Compared are what each block
adds to the residual stream, the loss, and the gradient of every parameter.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from gpt.device import Compute
from gpt.errors import first_line
from gpt.model import GPT
from gpt.model.attention import masked_scores, weighted_sum

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.04}
"""Largest difference from PyTorch's result in float32, see `_distance`, by type of the kernels.

Rounding brings 4e-6 and 0.027 in the recipes of `configs`.
"""
NARROW_FACTOR = 2.0
"""Where PyTorch itself is far from float32 in a narrow type, the kernels may be so many times as far besides."""
NOISE = 0.1
"""Deviation of what is added to constant weights: a projection of zeros would hide all that comes before it."""

Drop = Callable[[Tensor, float], Tensor]
"""Drops elements of a tensor with a probability, seeded by torch's generator."""
Results = dict[str, Tensor]
"""What is compared of a pass, by the words that name it in a message."""


def describe_difference(model: GPT, native: GPT, compute: Compute, drop: Drop) -> str | None:
    """Return what differs first between a model and the same model with native blocks; None if nothing does.

    Neither weights, gradients nor the state of torch's generator change. The model is in float32 on the CPU, `compute`
    is that of the kernels, and `drop` what the native blocks' dropout computes.
    """
    weights, idx = _informative(model), _sequence(model)
    float32 = replace(compute, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()

        def run(which: GPT, how: Compute) -> Results:
            torch.set_rng_state(state)
            return _run(which, weights, idx, how, drop)

        right = run(model, float32)
        try:
            distances = _distances(run(native, compute), right)
        except Exception as error:  # whatever kernels cannot do with this model, PyTorch can
            return f"the native blocks cannot run this model ({first_line(error)})"
        allowed = dict.fromkeys(right, TOLERANCES[compute.dtype])
        if compute.dtype != torch.float32 and _first_above(distances, allowed):
            rounding = _distances(run(model, compute), right)
            allowed = {name: bound + NARROW_FACTOR * rounding[name] for name, bound in allowed.items()}
    name = _first_above(distances, allowed)
    return name and f"{name} differs by {distances[name]:.2g} from that of {_source(name)}"


def twin(model: GPT) -> GPT:
    """Return a model with the same modules, whose blocks can be replaced without touching the model's own."""
    other = copy.copy(model)
    other._modules = {**model._modules, "h": nn.ModuleList(model.h)}
    return other


def _informative(model: GPT) -> dict[str, Tensor]:
    """Return leaves with the values of a model's parameters, or near them where all are equal."""
    generator = torch.Generator().manual_seed(0)
    leaves = {}
    for name, parameter in model.named_parameters():
        weight = parameter.detach()
        if bool((weight == weight.flatten()[0]).all()):
            weight = weight + NOISE * torch.randn(weight.shape, generator=generator, dtype=weight.dtype, device="cpu")
        leaves[name] = weight.requires_grad_()
    return leaves


def _sequence(model: GPT) -> Tensor:
    """Return ids as long as the window, so that every position counts, and one more: (1, T + 1)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.vocab_size, (1, model.config.block_size + 1), generator=generator, device="cpu")


@torch.inference_mode(False)
@torch.enable_grad()
def _run(model: GPT, weights: dict[str, Tensor], idx: Tensor, compute: Compute, drop: Drop) -> Results:
    """Run a model forward and backward, with other leaves in place of its parameters."""
    results: Results = {}
    with _observed(model, results), _SameDropout(drop), compute.autocast():
        logits = functional_call(model, weights, (idx[:, :-1],))
    loss = F.cross_entropy(logits.flatten(0, 1).float(), idx[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    results["the loss"] = loss.detach()
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        results[f"the gradient of {name}"] = torch.zeros_like(weight) if gradient is None else gradient
    return results


@contextmanager
def _observed(model: GPT, results: Results) -> Iterator[None]:
    """Record what each block adds to the residual stream."""

    def recorder(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            results[name] = (output.detach() - inputs[0].detach()).float()

        return record

    hooks = [block.register_forward_hook(recorder(f"block {i}'s output")) for i, block in enumerate(model.h)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _SameDropout(TorchFunctionMode):
    """Lets torch's dropout drop what the kernels drop."""

    def __init__(self, drop: Drop) -> None:
        super().__init__()
        self._drop = drop

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p"):
            q, k, v = args
            weights = masked_scores(q, k, kwargs["attn_mask"]).softmax(dim=-1)
            return weighted_sum(self._drop(weights, kwargs["dropout_p"]), v)
        return func(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return self._drop(x, p) if training and p > 0 else x


def _distances(results: Results, right: Results) -> dict[str, float]:
    return {name: _distance(results[name], value) for name, value in right.items()}


def _distance(result: Tensor, right: Tensor) -> float:
    """Return the norm of the difference relative to what is right, of outputs (B, T, C) at the worst position.

    A number that is not finite is infinitely far away.
    """
    if right.dim() == 3 and right.size(1) > 1:
        distance = (result - right).norm(dim=-1).max() / right.norm(dim=-1).mean().clamp(min=1e-30)
    else:
        distance = (result - right).norm() / right.norm().clamp(min=1e-30)
    return float(distance.nan_to_num(nan=torch.inf))


def _first_above(distances: Mapping[str, float], allowed: Mapping[str, float]) -> str | None:
    return next((name for name, distance in distances.items() if distance > allowed[name]), None)


def _source(name: str) -> str:
    return "gpt/model/gpt.py" if name.startswith("block") else "the model in gpt/model"
