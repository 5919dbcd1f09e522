"""The operations of a training step's blocks, one kernel each, with gradients.

The residual stream is float32; inputs of matmuls have the type `kernels.dtype`. Most matmuls are
torch's. Each function computes the same as a few modules of `gpt.model`, in bfloat16 as under
autocast, but rounds less often. The gradients come from kernels too, which autograd cannot
differentiate: it raises an error for a second derivative.

Shapes: B batch, T time, C = n_embd, D head width, F outputs of a linear layer. `rows` is the
product of all dimensions but the last. Widths are multiples of 16, since kernels compute vectors of
up to 16 numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gpt.model.positions import Rotation
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
"""Classes of processors on which the kernels' float32 matmuls are faster than torch's.

Torch uses Intel's MKL, which is not tuned for AMD's processors: 1.2 times was measured on them.
"""
Settings = Mapping[str, Any]
"""Arguments of a kernel that are numbers, by name: the same in the forward and backward pass."""
Gradients = Sequence[Tensor | None]
"""What a backward pass returns: a gradient or None for each argument of the forward pass."""


@dataclass(frozen=True)
class Dropout:
    """The dropout of one call.

    The seed has 32 bits. By the same seed, the backward pass drops the same elements, so that no
    mask is stored.
    """

    probability: float = 0.0
    seed: int = 0

    @property
    def arguments(self) -> dict[str, float]:
        """The arguments of a kernel that state this dropout."""
        return {"dropout": self.probability, "seed": self.seed}


@dataclass(frozen=True)
class NormOptions:
    """A norm without bias: LayerNorm if it is centered, otherwise RMSNorm."""

    centered: bool
    eps: float  # added to the variance, or to the mean square


@dataclass(frozen=True)
class HeadNorms:
    """The RMSNorm on each query head and each key head, before the rotation."""

    q_gain: Tensor  # (D,) float32
    k_gain: Tensor  # (D,) float32
    eps: float  # added to the mean square


def linear(kernels: Kernels, x: Tensor, *weights: Tensor) -> Tensor:
    """Compute `x weight^T` for each weight, with the results side by side.

    Args:
        x: (..., C) of the kernels' type, C a multiple of 16.
        weights: (F, C) float32 each, the sum of F a multiple of 16. Their gradients are float32.

    Returns:
        (..., sum of F) of the type of x.
    """
    return _Linear.apply(kernels, x, *weights)  # type: ignore[no-untyped-call]


def matmul(kernels: Kernels, a: Tensor, b: Tensor) -> Tensor:
    """Compute `a b` in float32, without gradients: (M, K) and (K, N) -> (M, N), N a multiple of 16.

    a and b are contiguous, or transposes of contiguous matrices. The number of threads does not
    change a bit of the result.
    """
    c = a.new_empty(a.size(0), b.size(1))
    a_row, a_column = a.stride()
    b_row, b_column = b.stride()
    kernels.call(
        "matmul",
        # A kernel takes contiguous tensors only; the strides say which of them is transposed.
        a=a if a.is_contiguous() else a.T,
        b=b if b.is_contiguous() else b.T,
        c=c,
        rows=a.size(0),
        columns=b.size(1),
        depth=a.size(1),
        a_row=a_row,
        a_column=a_column,
        b_row=b_row,
        b_column=b_column,
    )
    return c


def add_norm(
    kernels: Kernels,
    x: Tensor,
    y: Tensor | None,
    gain: Tensor,
    options: NormOptions,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """Add to the residual stream, and normalize the sum.

    Args:
        x: the stream so far, (..., C) float32, C a multiple of 16.
        y: what is added, (..., C) of the kernels' type; None adds nothing.
        gain: (C,) float32.

    Returns:
        The stream `x + dropout(y)`, (..., C) float32, and its norm times `gain`, (..., C) of the
        kernels' type.
    """
    settings = {
        **_sizes(x),
        **dropout.arguments,
        "centered": options.centered,
        "eps": options.eps,
    }
    return _AddNorm.apply(kernels, x, y, gain, settings)  # type: ignore[no-untyped-call]


def add(kernels: Kernels, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
    """Compute `x + dropout(y)` in float32: x (..., C) float32, y (..., C) of the kernels' type."""
    return _Add.apply(kernels, x, y, dropout)  # type: ignore[no-untyped-call]


def drop_out(kernels: Kernels, x: Tensor, dropout: Dropout) -> Tensor:
    """Apply dropout to x, (..., C) float32, C a multiple of 16."""
    return _DropOut.apply(kernels, x, dropout)  # type: ignore[no-untyped-call]


def activate(kernels: Kernels, x: Tensor, name: str) -> Tensor:
    """Apply one of `ACTIVATIONS` to x, (..., F) of the kernels' type, F a multiple of 16.

    For swiglu, x is (..., 2 F) with gate and up side by side; `silu(gate) * up` is (..., F).
    """
    return _Activate.apply(kernels, x, ACTIVATIONS[name])  # type: ignore[no-untyped-call]


def attention(
    kernels: Kernels,
    qkv: Tensor,
    heads: int,
    norms: HeadNorms | None,
    rotation: Rotation | None,
    dropout: Dropout,
) -> Tensor:
    """Compute causal attention.

    Args:
        qkv: queries, keys and values side by side, (B, T, 3 C) of the kernels' type; D = C / heads
            is a multiple of 32, at most 256.
        norms: those of the heads of queries and keys; None: they are not normalized.
        rotation: cosine and sine of rotary positions, (T, D) float32 each.
        dropout: of the attention weights.

    Returns:
        The weighted sums of the values, (B, T, C) of the kernels' type.
    """
    batch, length, three_widths = qkv.shape
    settings = {
        "batch": batch,
        "length": length,
        "heads": heads,
        "head_dim": three_widths // 3 // heads,
        **dropout.arguments,
    }
    gains: tuple[Tensor, ...] = ()
    if norms is not None:
        gains = (norms.q_gain, norms.k_gain)
        settings["eps"] = norms.eps
    # Gains are arguments of their own, since autograd finds no tensors inside of an object.
    return _Attention.apply(  # type: ignore[no-untyped-call]
        kernels, settings, rotation, qkv, *gains
    )


def _sizes(x: Tensor) -> dict[str, int]:
    """Return the arguments of a kernel that works on the rows of x (..., width)."""
    return {"rows": x.numel() // x.size(-1), "width": x.size(-1)}


def _zeros_per_thread(width: int) -> Tensor:
    """Return (threads, width) zeros: each thread adds to its own row; the caller sums the rows."""
    return torch.zeros(torch.get_num_threads(), width, dtype=torch.float32)


class _Linear(Function):
    """See `linear`. The weights are joined, so that one matmul computes all outputs."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, *weights: Tensor) -> Tensor:
        converted = [weight.to(kernels.dtype) for weight in weights]
        weight = torch.cat(converted) if len(converted) > 1 else converted[0]
        ctx.save_for_backward(x, weight)
        ctx.kernels = kernels
        ctx.sizes = [each.size(0) for each in weights]
        x_rows = x.contiguous().flatten(0, -2)  # (rows, C)
        y_rows = _multiply(kernels, x_rows, weight.T)  # (rows, sum of F)
        return y_rows.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        x, weight = ctx.saved_tensors
        dy_rows = dy.contiguous().flatten(0, -2)  # (rows, sum of F)
        x_rows = x.contiguous().flatten(0, -2)  # (rows, C)
        if dy.dtype == torch.float32:
            dweight = _multiply(ctx.kernels, dy_rows.T, x_rows)  # (sum of F, C)
        else:
            # A matmul of torch would round the gradient to bfloat16; the kernel keeps float32.
            dweight = torch.empty(weight.shape, dtype=torch.float32)
            ctx.kernels.call(
                "weight_gradient",
                dw=dweight,
                dy=dy_rows,
                x=x_rows,
                rows=len(dy_rows),
                outputs=weight.size(0),
                inputs=weight.size(1),
            )
        dx = _multiply(ctx.kernels, dy_rows, weight).view(x.shape)
        # for kernels, x and each of the weights
        return None, dx, *torch.split(dweight, ctx.sizes)


def _multiply(kernels: Kernels, a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices by the faster of the kernels and torch."""
    if kernels.processor in FASTER_THAN_TORCH:
        return matmul(kernels, a, b)
    return a @ b


class _AddNorm(Function):
    """See `add_norm`. What the backward pass needs is saved under the kernel's own names."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        x: Tensor,
        y: Tensor | None,
        gain: Tensor,
        settings: Settings,
    ) -> tuple[Tensor, Tensor]:
        ctx.kernels = kernels
        ctx.adds = y is not None
        ctx.settings = settings
        rows = settings["rows"]
        stream = x if y is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=kernels.dtype)
        # The backward pass needs the mean and 1 / standard deviation of each row again.
        saved = {
            "stream": stream,
            "mean": torch.empty(rows, dtype=torch.float32),
            "inverse": torch.empty(rows, dtype=torch.float32),
            "gain": gain,
        }
        kernels.call("add_norm_forward", x=x, y=y, normed=normed, **saved, **settings)
        ctx.names = tuple(saved)
        ctx.save_for_backward(*saved.values())
        return stream, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        dstream, dnormed = gradients
        dstream = dstream.contiguous()
        dx = torch.empty_like(dstream)
        dy = torch.empty_like(dstream, dtype=ctx.kernels.dtype) if ctx.adds else None
        dgain = _zeros_per_thread(dx.size(-1))  # (threads, C)
        saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        ctx.kernels.call(
            "add_norm_backward",
            dx=dx,
            dy=dy,
            dgain=dgain,
            dstream=dstream,
            dnormed=dnormed.contiguous(),
            **saved,
            **ctx.settings,
        )
        return None, dx, dy, dgain.sum(dim=0), None


class _Add(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        out = torch.empty_like(x)
        ctx.kernels = kernels
        ctx.settings = {**_sizes(x), **dropout.arguments}
        kernels.call("add_forward", out=out, x=x, y=y, **ctx.settings)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Gradients:
        dout = dout.contiguous()
        dy = torch.empty_like(dout, dtype=ctx.kernels.dtype)
        # The gradient of dropout is dropout of the gradient, with the same elements dropped.
        ctx.kernels.call("dropout", dy=dy, x=dout, **ctx.settings)
        return None, dout, dy, None


class _DropOut(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.kernels = kernels
        ctx.settings = {**_sizes(x), **dropout.arguments}
        return _call_dropout(ctx, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Gradients:
        return None, _call_dropout(ctx, dout), None


def _call_dropout(ctx: Any, x: Tensor) -> Tensor:
    """Apply the dropout of a context to x, or in the backward pass to its gradient."""
    x = x.contiguous()
    out = torch.empty_like(x)
    ctx.kernels.call("dropout", out=out, x=x, **ctx.settings)
    return out


class _Activate(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, kind: Activation) -> Tensor:
        # A gated activation maps two halves of x to one.
        width = x.size(-1) // 2 if kind == Activation.GATED_SILU else x.size(-1)
        y = x.new_empty(*x.shape[:-1], width)
        ctx.save_for_backward(x)
        ctx.kernels = kernels
        ctx.settings = {**_sizes(y), "kind": kind}
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
    """See `attention`. What the backward pass needs is saved under the kernel's own names."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        settings: Settings,
        rotation: Rotation | None,
        qkv: Tensor,
        *gains: Tensor,
    ) -> Tensor:
        batch, length, three_widths = qkv.shape
        ctx.kernels = kernels
        ctx.settings = settings
        cosine, sine = rotation or (None, None)
        q_gain, k_gain = gains or (None, None)
        y = qkv.new_empty(batch, length, three_widths // 3)
        saved = {
            "qkv": qkv,
            "q_gain": q_gain,
            "k_gain": k_gain,
            "cosine": cosine,
            "sine": sine,
            "y": y,
            # The log of each softmax's denominator, by which the backward pass computes the
            # attention weights again instead of storing (B, H, T, T) of them.
            "log_sums": torch.empty(batch, settings["heads"], length, dtype=torch.float32),
        }
        kernels.call("attention_forward", **saved, **settings)  # writes y and log_sums
        ctx.names = tuple(saved)
        ctx.save_for_backward(*saved.values())
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        dqkv = torch.empty_like(saved["qkv"])
        head_dim = ctx.settings["head_dim"]
        # The kernel adds to these only if there are gains; it wants the memory in any case.
        dq_gain = _zeros_per_thread(head_dim)
        dk_gain = _zeros_per_thread(head_dim)
        ctx.kernels.call(
            "attention_backward",
            dqkv=dqkv,
            dy=dy.contiguous(),
            dq_gain=dq_gain,
            dk_gain=dk_gain,
            **saved,
            **ctx.settings,
        )
        dgains: tuple[Tensor, ...] = ()
        if saved["q_gain"] is not None:
            dgains = (dq_gain.sum(dim=0), dk_gain.sum(dim=0))
        return None, None, None, dqkv, *dgains
