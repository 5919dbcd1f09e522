"""The operations of a training step's blocks, as one kernel each, with their gradients; most matmuls are torch's.

The residual stream is float32; inputs of matmuls have the type `kernels.dtype`. Each function computes the same as a
few modules of `gpt.model`, in bfloat16 as under autocast, but rounds less often. Gradients come from kernels too, which
autograd cannot differentiate: for a second derivative it raises an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gpt.native.contract import Activation
from gpt.native.training.bindings import Kernels
from gpt.system.processor import AVX2

ACTIVATIONS = {
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "gelu": Activation.GELU,
    "swiglu": Activation.GATED_SILU,
}
"""Supported values of `ModelConfig.mlp`."""
FASTER_THAN_TORCH = (AVX2,)
"""Processors whose float32 matmuls are faster by the kernels: 1.2 times on AMD's, of which torch's MKL knows little."""
Gradients = Sequence[Tensor | None]


@dataclass(frozen=True)
class Dropout:
    """The dropout of one call: the same seed, of 32 bits, drops the same elements."""

    probability: float = 0.0
    seed: int = 0

    @property
    def fields(self) -> dict[str, float]:
        return {"dropout": self.probability, "seed": self.seed}


@dataclass(frozen=True)
class NormOptions:
    """A norm without bias: LayerNorm where it is centered, else RMSNorm; `eps` is added to the variance."""

    centered: bool
    eps: float


def linear(kernels: Kernels, x: Tensor, *weights: Tensor) -> Tensor:
    """Compute `x weight^T`, side by side where there are several weights; gradients of weights are float32.

    x is (..., C), C a multiple of 16, each weight (F, C) float32; the result (..., sum of F) has the type of x, and the
    sum of F has to be a multiple of 16.
    """
    return _Linear.apply(kernels, x, *weights)  # type: ignore[no-untyped-call]


def matmul(kernels: Kernels, a: Tensor, b: Tensor) -> Tensor:
    """Compute `a b` in float32, (M, K) and (K, N) -> (M, N), N a multiple of 16; without gradients.

    a and b are contiguous, or transposes of contiguous matrices. The result does not depend on the number of threads.
    """
    c = a.new_empty(a.size(0), b.size(1))
    sizes = {"rows": a.size(0), "columns": b.size(1), "depth": a.size(1)}
    strides = dict(zip(("a_row", "a_column", "b_row", "b_column"), (*a.stride(), *b.stride()), strict=True))
    in_memory = {name: x if x.is_contiguous() else x.T for name, x in (("a", a), ("b", b))}
    kernels.call("matmul", c=c, **in_memory, **sizes, **strides)
    return c


def add_norm(
    kernels: Kernels, x: Tensor, y: Tensor | None, gain: Tensor, options: NormOptions, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """Compute `stream = x + dropout(y)`, or x where y is None, and its norm times `gain`; return both.

    x and the stream are (..., C) float32, C a multiple of 16, gain is (C,) float32; y and the norm are (..., C) of the
    kernels' type.
    """
    return _AddNorm.apply(kernels, x, y, gain, options, dropout)  # type: ignore[no-untyped-call]


def add(kernels: Kernels, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
    """Compute `x + dropout(y)`: x (..., C) float32, y (..., C) of the kernels' type -> float32."""
    return _Add.apply(kernels, x, y, dropout)  # type: ignore[no-untyped-call]


def drop_out(kernels: Kernels, x: Tensor, dropout: Dropout) -> Tensor:
    """Drop elements of x (..., C) float32, C a multiple of 16."""
    return _DropOut.apply(kernels, x, dropout)  # type: ignore[no-untyped-call]


def activate(kernels: Kernels, x: Tensor, name: str) -> Tensor:
    """Apply one of `ACTIVATIONS` to x (..., F) of the kernels' type, F a multiple of 16.

    For swiglu, x (..., 2 F) has gate and up side by side; the result `silu(gate) * up` is (..., F).
    """
    return _Activate.apply(kernels, x, ACTIVATIONS[name])  # type: ignore[no-untyped-call]


def attention(
    kernels: Kernels,
    qkv: Tensor,
    heads: int,
    gains: tuple[Tensor, Tensor] | None,
    rotation: tuple[Tensor, Tensor] | None,
    eps: float,
    dropout: Dropout,
) -> Tensor:
    """Compute causal attention, from the projections to the weighted sums (B, T, C) of the same type.

    qkv has queries, keys and values side by side, (B, T, 3 C) of the kernels' type, C / heads a multiple of 32, at most
    256. gains and eps are those of the RMSNorm on each query and key head, (D,) float32 each; rotation is cos and sin,
    each (T, D) float32. Dropout is that of the attention weights.
    """
    factors = (*(gains or (None, None)), *(rotation or (None, None)))
    return _Attention.apply(kernels, qkv, *factors, heads, eps, dropout)  # type: ignore[no-untyped-call]


def _rows(x: Tensor) -> dict[str, int]:
    return {"rows": x.numel() // x.size(-1), "width": x.size(-1)}


def _per_thread(width: int) -> Tensor:
    return torch.zeros(torch.get_num_threads(), width, dtype=torch.float32)


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, *weights: Tensor) -> Tensor:
        converted = [weight.to(kernels.dtype) for weight in weights]
        weight = torch.cat(converted) if len(converted) > 1 else converted[0]
        ctx.save_for_backward(x, weight)
        ctx.kernels, ctx.sizes = kernels, [weight.size(0) for weight in weights]
        return _multiply(kernels, x.contiguous().flatten(0, -2), weight.T).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        dy_rows, x_rows = dy.contiguous().flatten(0, -2), x.contiguous().flatten(0, -2)
        if dy.dtype == torch.float32:
            dweight = _multiply(ctx.kernels, dy_rows.T, x_rows)
        else:
            dweight = torch.empty(weight.shape, dtype=torch.float32)
            sizes = {"rows": len(dy_rows), "outputs": weight.size(0), "inputs": weight.size(1)}
            ctx.kernels.call("weight_gradient", dw=dweight, dy=dy_rows, x=x_rows, **sizes)
        return None, _multiply(ctx.kernels, dy_rows, weight).view(x.shape), *torch.split(dweight, ctx.sizes)


def _multiply(kernels: Kernels, a: Tensor, b: Tensor) -> Tensor:
    return matmul(kernels, a, b) if kernels.processor in FASTER_THAN_TORCH else a @ b


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, x: Tensor, y: Tensor | None, gain: Tensor, options: NormOptions, dropout: Dropout
    ) -> tuple[Tensor, Tensor]:
        ctx.kernels, ctx.adds = kernels, y is not None
        ctx.settings = {**_rows(x), **dropout.fields, "centered": options.centered, "eps": options.eps}
        stream = x if y is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=kernels.dtype)
        mean, inverse = (torch.empty(ctx.settings["rows"], dtype=torch.float32) for _ in range(2))
        kept = {"stream": stream, "mean": mean, "inverse": inverse, "gain": gain}
        kernels.call("add_norm_forward", x=x, y=y, normed=normed, **kept, **ctx.settings)
        ctx.names = tuple(kept)
        ctx.save_for_backward(*kept.values())
        return stream, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        kept = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        dstream, dnormed = (gradient.contiguous() for gradient in gradients)
        dx = torch.empty_like(dstream)
        dy = torch.empty_like(dstream, dtype=ctx.kernels.dtype) if ctx.adds else None
        results = {"dx": dx, "dy": dy, "dgain": (dgain := _per_thread(dx.size(-1)))}
        ctx.kernels.call("add_norm_backward", **results, dstream=dstream, dnormed=dnormed, **kept, **ctx.settings)
        return None, dx, dy, dgain.sum(dim=0), None, None


class _Add(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        out = torch.empty_like(x)
        ctx.kernels, ctx.settings = kernels, {**_rows(x), **dropout.fields}
        kernels.call("add_forward", out=out, x=x, y=y, **ctx.settings)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Gradients:
        dout = dout.contiguous()
        dy = torch.empty_like(dout, dtype=ctx.kernels.dtype)
        ctx.kernels.call("dropout", dy=dy, x=dout, **ctx.settings)
        return None, dout, dy, None


class _DropOut(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.kernels, ctx.settings = kernels, {**_rows(x), **dropout.fields}
        return _dropped(ctx, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Gradients:
        return None, _dropped(ctx, dout), None


def _dropped(ctx: Any, x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    ctx.kernels.call("dropout", out=out, x=x, **ctx.settings)
    return out


class _Activate(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, kind: Activation) -> Tensor:
        width = x.size(-1) // 2 if kind == Activation.GATED_SILU else x.size(-1)
        y = x.new_empty(*x.shape[:-1], width)
        ctx.save_for_backward(x)
        ctx.kernels, ctx.settings = kernels, {**_rows(y), "kind": kind}
        kernels.call("activation_forward", y=y, x=x, **ctx.settings)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        ctx.kernels.call("activation_backward", dx=dx, dy=dy.contiguous(), x=x, **ctx.settings)
        return None, dx, None


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, qkv: Tensor, *arguments: Any) -> Tensor:
        *factors, heads, eps, dropout = arguments
        batch, length, width = qkv.size(0), qkv.size(1), qkv.size(2) // 3
        y = qkv.new_empty(batch, length, width)
        log_sums = torch.empty(batch, heads, length, dtype=torch.float32)
        ctx.kernels, ctx.names = kernels, ("qkv", "q_gain", "k_gain", "cosine", "sine", "y", "log_sums")
        ctx.settings = {"batch": batch, "length": length, "heads": heads, "head_dim": width // heads}
        ctx.settings |= {"eps": eps, **dropout.fields}
        tensors = (qkv, *factors, y, log_sums)
        kernels.call("attention_forward", **dict(zip(ctx.names, tensors, strict=True)), **ctx.settings)
        ctx.save_for_backward(*tensors)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        tensors = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        dqkv = torch.empty_like(tensors["qkv"])
        gains = {name: _per_thread(ctx.settings["head_dim"]) for name in ("dq_gain", "dk_gain")}
        ctx.kernels.call("attention_backward", dqkv=dqkv, dy=dy.contiguous(), **gains, **tensors, **ctx.settings)
        dgains = [None if tensors["q_gain"] is None else gain.sum(dim=0) for gain in gains.values()]
        return None, dqkv, *dgains, None, None, None, None, None
