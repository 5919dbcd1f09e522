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
    rounded = 2**-8 if kernels.dtype == torch.bfloat16 else EXACT
    h, weight, dy = inputs(kernels, shape, taps)
    h64, weight64 = double(h), double(weight)
    y, right = short_conv(kernels, h, weight), plain(h64, weight64)
    dh, dw = torch.autograd.grad(y, [h, weight], dy)
    right_dh, right_dw = torch.autograd.grad(right, [h64, weight64], dy.double())
    assert (y.dtype, dh.dtype, dw.dtype, dw.shape) == (kernels.dtype, kernels.dtype, torch.float32, weight.shape)
    assert max(error(y, right), error(dh, right_dh)) < rounded
    assert error(dw, right_dw) < EXACT


def test_results_depend_neither_on_threads_nor_on_how_a_gradient_lies_in_memory(kernels: Kernels) -> None:
    """Nor do the gradients of the weights, which are sums over all positions."""
    h, weight, _ = inputs(kernels, (3, 200, 48), 4)
    turned = torch.randn(3, 48, 200).to(kernels.dtype).mT
    results = []
    for threads, dy in ((1, turned), (1, turned.contiguous()), (2, turned), (7, turned)):
        torch.set_num_threads(threads)
        y = short_conv(kernels, h, weight)
        results.append([y, *torch.autograd.grad(y, [h, weight], dy)])
    assert all(torch.equal(one, other) for again in results[1:] for one, other in zip(results[0], again, strict=True))


@pytest.mark.parametrize("cut", [1, 8, 65])
def test_what_comes_later_is_not_even_read(kernels: Kernels, cut: int) -> None:
    h, weight, _ = inputs(kernels, (2, 70, 32), 4)
    changed = h.detach().clone()
    changed[:, cut:] = torch.nan
    y, other = short_conv(kernels, h, weight), short_conv(kernels, changed, weight)
    assert torch.equal(other[:, :cut], y[:, :cut])
    assert other[:, cut:].isnan().any()
