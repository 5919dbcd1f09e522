"""Updates by the library, against those of `torch.optim.AdamW` and of `Muon`."""

import math
from typing import Any

import pytest
import torch
from native_support import PROCESSORS_HERE, error, needs_compiler
from torch import Tensor, nn

from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.native_update import Updated, update_natively
from gpt.system.environment import read_settings
from gpt.training.muon import Muon

pytestmark = needs_compiler

PIECE = 2**14
"""Numbers that a task of the library computes."""
SIZES = (1, 15, 16, 17, 1000, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5)
MATRICES = [
    *((64, 64), (96, 32), (32, 96)),
    # Sizes that are no multiples of 16 or 32.
    *((33, 65), (65, 33), (7, 5), (100, 12)),
    # One row, one column, one number.
    *((1, 40), (40, 1), (1, 1)),
]
STEPS = 4
FLOAT32_ERROR = 1e-5
"""Bound on the relative error of what one or several iterations of Newton-Schulz return."""


@pytest.fixture(scope="module", params=PROCESSORS_HERE, ids=lambda processor: processor.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    processor = request.param
    return load_kernels(processor.matmul_dtype, read_settings(), processor=processor)


def updated_by_adamw(weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Updated:
    moments = (torch.zeros_like(weight), torch.zeros_like(weight))
    return Updated(weight, gradient, *moments, torch.zeros(()), group)


def updated_by_muon(weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Updated:
    return Updated(weight, gradient, torch.zeros_like(weight), None, None, group)


@pytest.mark.parametrize("eps", [1e-8, 0.3])
def test_adamw(kernels: Kernels, eps: float) -> None:
    """All sizes in one call, half of them with weight decay and another rate."""
    settings = {"betas": (0.8, 0.95), "eps": eps}
    weights = [torch.randn(size) for size in SIZES]
    exact = [nn.Parameter(weight.double()) for weight in weights]
    groups = [
        {"params": exact[::2], "lr": 0.1, "weight_decay": 0.3},
        {"params": exact[1::2], "lr": 0.02, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, **settings)
    updated: list[Updated] = []
    for index, weight in enumerate(weights):
        group = adamw.param_groups[index % 2]
        updated.append(updated_by_adamw(weight, torch.empty_like(weight), group))
    for step in range(STEPS):
        for parameter, native in zip(exact, updated, strict=True):
            native.gradient.normal_(std=10.0**-step)
            parameter.grad = native.gradient.double()
        adamw.param_groups[0]["lr"] *= 0.7
        adamw.step()
        update_natively(kernels, updated)
    for parameter, native in zip(exact, updated, strict=True):
        state = adamw.state[parameter]
        assert native.step is not None
        assert native.second_moment is not None
        assert float(native.step) == float(state["step"]) == STEPS
        # Corrections are float32, whose rounding a difference of such numbers magnifies.
        assert error(native.first_moment, state["exp_avg"]) < 1e-6
        assert error(native.second_moment, state["exp_avg_sq"]) < 1e-6
        assert error(native.weight, parameter) < 1e-6


def test_adamw_steps_without_gradient_decay_only(kernels: Kernels) -> None:
    weight = torch.randn(100)
    expected = weight * (1 - 0.1 * 0.3)
    group = {"lr": 0.1, "weight_decay": 0.3, "betas": (0.9, 0.99), "eps": 1e-8}
    update_natively(kernels, [updated_by_adamw(weight, torch.zeros(100), group)])
    assert error(weight, expected.double()) < 1e-7


def muon_steps(dtype: torch.dtype, weight: Tensor, gradients: list[Tensor]) -> Muon:
    """Update a copy of a weight by PyTorch; return the optimizer."""
    parameter = nn.Parameter(weight.clone())
    muon = Muon([parameter], lr=0.1, momentum=0.9, weight_decay=0.2, dtype=dtype)
    for gradient in gradients:
        parameter.grad = gradient.to(parameter.dtype)
        muon.step()
    return muon


@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_muon(kernels: Kernels, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    gradients = [torch.randn(shape) for _ in range(STEPS)]
    exact = muon_steps(torch.float64, weight.double(), gradients)
    torchs = muon_steps(kernels.dtype, weight, gradients)
    (parameter,) = exact.param_groups[0]["params"]
    (torch_parameter,) = torchs.param_groups[0]["params"]
    native = updated_by_muon(weight.clone(), torch.empty(shape), exact.param_groups[0])
    for gradient in gradients:
        native.gradient.copy_(gradient)
        update_natively(kernels, [native])
    assert error(native.first_moment, exact.momentum(parameter)) < 1e-6
    decayed = weight.double() * (1 - 0.1 * 0.2) ** STEPS
    moved = parameter.detach() - decayed
    found_error = error(native.weight.double() - decayed, moved)
    if kernels.dtype == torch.float32:
        assert found_error < FLOAT32_ERROR
    else:
        # An iteration magnifies the rounding of small singular values, for torch as for this.
        torch_error = error(torch_parameter.detach().double() - decayed, moved)
        assert found_error < 1.5 * torch_error + 2**-9


def test_muon_of_several_matrices_in_one_call(kernels: Kernels) -> None:
    """Each as if it were alone: they share the memory of the largest."""
    group = {"lr": 0.1, "weight_decay": 0.1, "steps": 5, "momentum": 0.9}
    weights = [torch.randn(shape) for shape in MATRICES]
    gradients = [torch.randn(shape) for shape in MATRICES]
    alone = [weight.clone() for weight in weights]
    for weight, gradient in zip(alone, gradients, strict=True):
        update_natively(kernels, [updated_by_muon(weight, gradient, group)])
    for threads in (1, 3):
        torch.set_num_threads(threads)
        together = [weight.clone() for weight in weights]
        updated = [
            updated_by_muon(weight, gradient, group)
            for weight, gradient in zip(together, gradients, strict=True)
        ]
        # A vector among them, which is AdamW's.
        adamw = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}
        updated.insert(3, updated_by_adamw(torch.randn(50000), torch.randn(50000), adamw))
        update_natively(kernels, updated)
        assert all(map(torch.equal, alone, together))


def test_muon_takes_gradients_of_zeros_and_of_tiny_numbers(kernels: Kernels) -> None:
    group = {"lr": 0.1, "weight_decay": 0.0, "steps": 5, "momentum": 0.9}
    weight = torch.randn(40, 24)
    before = weight.clone()
    update_natively(kernels, [updated_by_muon(weight, torch.zeros(40, 24), group)])
    assert torch.equal(weight, before)
    update_natively(kernels, [updated_by_muon(weight, torch.full((40, 24), 1e-12), group)])
    assert weight.isfinite().all()


def test_number_of_iterations_is_that_of_the_group(kernels: Kernels) -> None:
    """Without any, a matrix moves along its normalized direction."""
    group = {"lr": 1.0, "weight_decay": 0.0, "steps": 0, "momentum": 0.0}
    gradient = torch.randn(24, 40)
    weight = torch.zeros(24, 40)
    update_natively(kernels, [updated_by_muon(weight, gradient, group)])
    limit = 1e-6 if kernels.dtype == torch.float32 else 2**-7
    assert error(-weight, (gradient / gradient.norm()).double()) < limit


@pytest.mark.parametrize("count", [1, 15, 16, 17, PIECE, 5 * PIECE + 3])
def test_norm_and_scale(kernels: Kernels, count: int) -> None:
    numbers = torch.randn(count)
    expected = float(numbers.double().norm())
    norms = set()
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        norms.add(kernels.norm(numbers))
        scaled = numbers.clone()
        kernels.scale(scaled, 0.3)
        assert torch.equal(scaled, numbers * 0.3)
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(expected, rel=1e-6)
    numbers[count // 2] = math.nan
    assert math.isnan(kernels.norm(numbers))
    numbers[count // 2] = -math.inf
    assert math.isinf(kernels.norm(numbers))


def test_tensors_that_c_cannot_read_are_refused(kernels: Kernels) -> None:
    group = {"lr": 0.1, "weight_decay": 0.1, "steps": 5, "momentum": 0.9}
    turned = torch.randn(4, 6).T
    with pytest.raises(TypeError, match="C reads contiguous"):
        update_natively(kernels, [updated_by_muon(turned, torch.randn(6, 4), group)])
    with pytest.raises(TypeError, match="C reads contiguous"):
        update_natively(kernels, [updated_by_muon(turned.double(), torch.randn(6, 4), group)])
