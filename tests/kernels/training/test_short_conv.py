"""Short convolutions, for every class of processor, against torch's in float64 from the same rounded inputs."""

import pytest
import torch
import torch.nn.functional as F
from native_support import PROCESSORS_HERE, double, error, needs_compiler
from torch import Tensor

from gpt.environment import read_settings
from gpt.kernels.training.bindings import Kernels
from gpt.kernels.training.short_conv import short_conv

pytestmark = needs_compiler

EXACT = 2e-6
"""Relative error of sums in float32."""
SHAPES = [(1, 1, 16), (3, 2, 48), (2, 7, 32), (2, 8, 16), (3, 64, 32), (2, 65, 80), (1, 200, 128), (5, 129, 16)]
"""Sequences shorter than a filter, of whole and broken blocks and pieces; widths of odd numbers of vectors."""


@pytest.fixture(scope="module", params=PROCESSORS_HERE, ids=lambda processor: processor.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param.matmul_dtype, read_settings(), processors=[request.param])


def rounded(kernels: Kernels) -> float:
    """Return the largest relative error of rounding a number to the kernels' type."""
    return 2**-8 if kernels.dtype == torch.bfloat16 else EXACT


def inputs(kernels: Kernels, shape: tuple[int, int, int], taps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return random activations (B, T, C), weights (C, 1, K) and a gradient of the result."""
    h, dy = (torch.randn(shape).to(kernels.dtype) for _ in range(2))
    return h.requires_grad_(), torch.randn(shape[-1], 1, taps, requires_grad=True), dy


def plain(h: Tensor, weight: Tensor) -> Tensor:
    """Return `h[t] + sum_j weight[:, 0, j] h[t - j]`; torch's filters begin with the earliest position."""
    padded = F.pad(h.mT, (weight.size(-1) - 1, 0))
    return h + F.conv1d(padded, weight.flip(-1), groups=h.size(-1)).mT


@pytest.mark.parametrize("taps", range(2, 9))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_result_and_gradients(kernels: Kernels, shape: tuple[int, int, int], taps: int) -> None:
    h, weight, dy = inputs(kernels, shape, taps)
    h64, weight64 = double(h), double(weight)
    y, right = short_conv(kernels, h, weight), plain(h64, weight64)
    assert y.dtype == kernels.dtype
    assert error(y, right) < rounded(kernels)
    dh, dw = torch.autograd.grad(y, [h, weight], dy)
    right_dh, right_dw = torch.autograd.grad(right, [h64, weight64], dy.double())
    assert (dh.dtype, dw.dtype, dw.shape) == (kernels.dtype, torch.float32, weight.shape)
    assert error(dh, right_dh) < rounded(kernels)
    assert error(dw, right_dw) < EXACT


def test_a_filter_of_zeros_changes_nothing(kernels: Kernels) -> None:
    h, weight, dy = inputs(kernels, (2, 70, 32), 4)
    y = short_conv(kernels, h, torch.zeros_like(weight))
    assert torch.equal(y, h)
    assert torch.equal(*torch.autograd.grad(y, [h], dy), dy)


def test_results_do_not_depend_on_the_number_of_threads(kernels: Kernels) -> None:
    """Neither do the gradients of the weights, which are sums over all positions, nor on the call."""
    h, weight, dy = inputs(kernels, (3, 200, 48), 4)
    results = []
    for threads in (1, 1, 2, 3, 7):
        torch.set_num_threads(threads)
        y = short_conv(kernels, h, weight)
        results.append([y, *torch.autograd.grad(y, [h, weight], dy)])
    assert all(torch.equal(one, other) for again in results[1:] for one, other in zip(results[0], again, strict=True))


def test_sequences_do_not_mix(kernels: Kernels) -> None:
    h, weight, dy = inputs(kernels, (3, 37, 32), 5)
    y = short_conv(kernels, h, weight)
    (dh,) = torch.autograd.grad(y, [h], dy)
    for b in range(3):
        alone = h.detach()[b : b + 1].requires_grad_()
        result = short_conv(kernels, alone, weight)
        assert torch.equal(result[0], y[b])
        assert torch.equal(torch.autograd.grad(result, [alone], dy[b : b + 1])[0][0], dh[b])


@pytest.mark.parametrize("cut", [1, 7, 8, 64, 65])
def test_what_comes_later_does_not_change_a_bit_of_what_came_before(kernels: Kernels, cut: int) -> None:
    h, weight, _ = inputs(kernels, (2, 70, 32), 4)
    changed = h.detach().clone()
    changed[:, cut:] = torch.nan
    y, other = short_conv(kernels, h, weight), short_conv(kernels, changed, weight)
    assert torch.equal(other[:, :cut], y[:, :cut])
    assert other[:, cut:].isnan().all(dim=0).all(dim=-1)[:4].all()  # and as far as the filter reaches, they are seen


def test_a_gradient_that_is_not_contiguous_is_taken_as_it_is_meant(kernels: Kernels) -> None:
    h, weight, _ = inputs(kernels, (2, 32, 32), 3)
    dy = torch.randn(2, 32, 32).to(kernels.dtype).mT
    y = short_conv(kernels, h, weight)
    one = torch.autograd.grad(y, [h, weight], dy, retain_graph=True)
    other = torch.autograd.grad(y, [h, weight], dy.contiguous())
    assert all(map(torch.equal, one, other))
