"""The short causal convolutions of a block, as one kernel with its gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gpt.kernels.training.bindings import Kernels


def short_conv(kernels: Kernels, h: Tensor, weight: Tensor) -> Tensor:
    """Compute `y[t] = h[t] + sum_j weight[:, 0, j] * h[t - j]`, with zeros before the first position.

    h and y are (B, T, C) of the kernels' type, C a multiple of 16, weight is (C, 1, K) float32, K from 2 to 8.
    Gradients of weights are float32, and do not depend on the number of threads.
    """
    return _ShortConv.apply(kernels, h, weight)  # type: ignore[no-untyped-call]


class _ShortConv(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, h: Tensor, weight: Tensor) -> Tensor:
        batch, length, width = h.shape
        ctx.kernels, y = kernels, torch.empty_like(h)
        ctx.settings = {"batch": batch, "length": length, "width": width, "taps": weight.size(-1)}
        ctx.save_for_backward(h, weight)
        kernels.call("short_conv_forward", y=y, h=h, weight=weight, **ctx.settings)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        h, weight = ctx.saved_tensors
        dh, dw = torch.empty_like(h), torch.empty_like(weight)
        ctx.kernels.call("short_conv_backward", dh=dh, dw=dw, dy=dy.contiguous(), h=h, weight=weight, **ctx.settings)
        return None, dh, dw
