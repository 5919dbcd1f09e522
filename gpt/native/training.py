"""The operations between the matrix products of a training step, as one kernel each, with their gradients.

For CPUs with AMX, or with AVX-512's products of bfloat16. The residual stream is float32, what enters a
product bfloat16. Each equals a few modules of `gpt.model` under bfloat16 autocast, and rounds less often
than they do.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from gpt.errors import DeviceError
from gpt.native.build import load_library

ACTIVATIONS = {"relu": 0, "relu2": 1, "gelu": 2}
"""Those of `ModelConfig.mlp` that there is a kernel for, by its number."""


PRODUCTS = {"AMX tiles": ("-DGPT_TILES",), "AVX-512": ()}
"""What matrix products inside the kernels are made with, the quicker first, and the compiler's flags for it."""


def products_here() -> list[str]:
    """Those of `PRODUCTS` that this processor has."""
    supported = (torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_bf16_supported())
    return [name for name, is_supported in zip(PRODUCTS, supported, strict=True) if is_supported]


class Kernels:
    """The compiled library.

    Attributes:
        products: the one of `PRODUCTS` in use.

    Args:
        cache: folder that keeps it.
        products: to choose from, the best first; None: all that the processor has.

    Raises:
        DeviceError: the processor or the compiler does not do.
    """

    def __init__(self, cache: Path, products: Sequence[str] | None = None) -> None:
        reason = "this processor has neither AMX tiles nor AVX-512 products of bfloat16"
        for name in products_here() if products is None else products:
            self.products, self._library = name, load_library("training", cache, flags=PRODUCTS[name])
            if self._library.gpt_request_products() == 0:
                return
            reason = f"the system does not give this process the {name}"
        raise DeviceError(reason)

    def call(self, name: str, *arguments: object) -> None:
        """Call a kernel: tensors become pointers, None a null pointer, the number of threads comes last."""
        getattr(self._library, f"gpt_{name}")(*map(_as_c, arguments), ctypes.c_int(torch.get_num_threads()))


def _as_c(argument: object) -> object:
    match argument:
        case None:
            return ctypes.c_void_p(None)
        case Tensor():
            assert argument.is_contiguous()
            return ctypes.c_void_p(argument.data_ptr())
        case bool() | int():
            return ctypes.c_int64(argument)  # a kernel's int, int64_t or uint32_t takes as much of it as it needs
        case float():
            return ctypes.c_float(argument)
    raise AssertionError(f"no C type for {argument!r}")


@dataclass(frozen=True)
class Dropout:
    """Which elements a call drops: the same seed drops the same ones.

    Attributes:
        probability: of an element.
        seed: 32 bits.
    """

    probability: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class NormOptions:
    """A norm without bias.

    Attributes:
        centred: LayerNorm, else RMSNorm.
        eps: added to the variance.
    """

    centred: bool
    eps: float


def linear(kernels: Kernels, x: Tensor, *weights: Tensor) -> Tensor:
    """`x weight^T` in bfloat16, side by side where there are several weights; gradients of weights in float32.

    Args:
        kernels: compiled.
        x: (..., C) bfloat16, C a multiple of 16.
        weights: each (F, C) float32, the sum of F a multiple of 16.

    Returns:
        (..., sum of F) bfloat16.
    """
    return _Linear.apply(kernels, x, *weights)  # type: ignore[no-untyped-call]


def add_norm(
    kernels: Kernels, x: Tensor, y: Tensor | None, gain: Tensor, options: NormOptions, dropout: Dropout
) -> tuple[Tensor, Tensor]:
    """`stream = x + dropout(y)` and its norm times `gain`.

    Args:
        kernels: compiled.
        x: (..., C) float32, C a multiple of 16.
        y: (..., C) bfloat16, or None: nothing is added.
        gain: (C,) float32.
        options: which norm.
        dropout: of y.

    Returns:
        The stream (..., C) float32 and the norm (..., C) bfloat16.
    """
    return _AddNorm.apply(kernels, x, y, gain, options, dropout)  # type: ignore[no-untyped-call]


def add(kernels: Kernels, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
    """`x + dropout(y)`: x (..., C) float32, y (..., C) bfloat16 -> float32."""
    return _Add.apply(kernels, x, y, dropout)  # type: ignore[no-untyped-call]


def drop_out(kernels: Kernels, x: Tensor, dropout: Dropout) -> Tensor:
    """Dropout of x (..., C) float32, C a multiple of 16."""
    return _DropOut.apply(kernels, x, dropout)  # type: ignore[no-untyped-call]


def activate(kernels: Kernels, x: Tensor, name: str) -> Tensor:
    """One of `ACTIVATIONS`, (..., F) bfloat16 with a multiple of 16 elements."""
    return _Activate.apply(kernels, x, ACTIVATIONS[name])  # type: ignore[no-untyped-call]


def gate(kernels: Kernels, x: Tensor) -> Tensor:
    """SwiGLU's product: `silu(gate) * up`, side by side in x (..., 2 F) bfloat16, F a multiple of 16 -> (..., F)."""
    return _Gate.apply(kernels, x)  # type: ignore[no-untyped-call]


def attention(
    kernels: Kernels,
    qkv: Tensor,
    heads: int,
    gains: tuple[Tensor, Tensor] | None,
    rotation: tuple[Tensor, Tensor] | None,
    eps: float,
    dropout: Dropout,
) -> Tensor:
    """Causal attention from projections to the weighted sums.

    Args:
        kernels: compiled.
        qkv: queries, keys and values side by side, (B, T, 3 C) bfloat16; C / heads a multiple of 32, at most 256.
        heads: H, of all three.
        gains: of the RMSNorm of each query and key head, (D,) float32 each, or None.
        rotation: cos and sin, each (T, D) float32, or None.
        eps: of those norms.
        dropout: of the attention weights.

    Returns:
        (B, T, C) bfloat16.
    """
    q_gain, k_gain = gains or (None, None)
    cosine, sine = rotation or (None, None)
    return _Attention.apply(kernels, qkv, q_gain, k_gain, cosine, sine, heads, eps, dropout)  # type: ignore[no-untyped-call]


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, *weights: Tensor) -> Tensor:
        narrow = torch.cat([weight.to(torch.bfloat16) for weight in weights])
        ctx.save_for_backward(x, narrow)
        ctx.kernels, ctx.sizes = kernels, [weight.size(0) for weight in weights]
        return F.linear(x, narrow)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        x, weight = ctx.saved_tensors
        rows, dweight = dy.contiguous().flatten(0, -2), torch.empty(weight.shape)
        ctx.kernels.call("weight_gradient", dweight, rows, x.contiguous(), len(rows), *weight.shape)
        return None, (rows @ weight).view(x.shape), *torch.split(dweight, ctx.sizes)


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        x: Tensor,
        y: Tensor | None,
        gain: Tensor,
        options: NormOptions,
        dropout: Dropout,
    ) -> tuple[Tensor, Tensor]:
        rows, width = x.numel() // x.size(-1), x.size(-1)
        stream = x if y is None else torch.empty_like(x)
        normed = torch.empty_like(x, dtype=torch.bfloat16)
        mean, inverse = torch.empty(rows), torch.empty(rows)
        ctx.settings = (rows, width, options.centred, options.eps, dropout.seed, dropout.probability)
        kernels.call("add_norm_forward", stream, normed, mean, inverse, x, y, gain, *ctx.settings)
        ctx.save_for_backward(stream, mean, inverse, gain)
        ctx.kernels, ctx.adds = kernels, y is not None
        return stream, normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Sequence[Tensor | None]:
        stream, mean, inverse, gain = ctx.saved_tensors
        dstream, dnormed = (gradient.contiguous() for gradient in gradients)
        dx = torch.empty_like(stream)
        dy = torch.empty_like(stream, dtype=torch.bfloat16) if ctx.adds else None
        dgain = torch.zeros(torch.get_num_threads(), gain.numel())
        ctx.kernels.call(
            "add_norm_backward", dx, dy, dgain, dstream, dnormed, stream, mean, inverse, gain, *ctx.settings
        )
        return None, dx, dy, dgain.sum(dim=0), None, None


class _Add(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, y: Tensor, dropout: Dropout) -> Tensor:
        out = torch.empty_like(x)
        ctx.kernels = kernels
        ctx.settings = (x.numel() // x.size(-1), x.size(-1), dropout.seed, dropout.probability)
        kernels.call("add_forward", out, x, y, *ctx.settings)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Sequence[Tensor | None]:
        dout = dout.contiguous()
        dy = torch.empty_like(dout, dtype=torch.bfloat16)
        ctx.kernels.call("add_backward", dy, dout, *ctx.settings)
        return None, dout, dy, None


class _DropOut(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, dropout: Dropout) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        ctx.kernels = kernels
        ctx.settings = (x.numel() // x.size(-1), x.size(-1), dropout.seed, dropout.probability)
        kernels.call("drop_out", out, x, *ctx.settings)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Sequence[Tensor | None]:
        dout = dout.contiguous()
        dx = torch.empty_like(dout)
        ctx.kernels.call("drop_out", dx, dout, *ctx.settings)
        return None, dx, None


class _Activate(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, kind: int) -> Tensor:
        y = torch.empty_like(x)
        ctx.save_for_backward(x)
        ctx.kernels, ctx.kind = kernels, kind
        kernels.call("activation_forward", y, x, x.numel(), kind)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        ctx.kernels.call("activation_backward", dx, dy.contiguous(), x, x.numel(), ctx.kind)
        return None, dx, None


class _Gate(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor) -> Tensor:
        width = x.size(-1) // 2
        y = x.new_empty(*x.shape[:-1], width)
        ctx.save_for_backward(x)
        ctx.kernels, ctx.sizes = kernels, (y.numel() // width, width)
        kernels.call("gate_forward", y, x, *ctx.sizes)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        ctx.kernels.call("gate_backward", dx, dy.contiguous(), x, *ctx.sizes)
        return None, dx


class _Attention(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        qkv: Tensor,
        q_gain: Tensor | None,
        k_gain: Tensor | None,
        cosine: Tensor | None,
        sine: Tensor | None,
        heads: int,
        eps: float,
        dropout: Dropout,
    ) -> Tensor:
        batch, length, width = qkv.size(0), qkv.size(1), qkv.size(2) // 3
        y, log_sums = qkv.new_empty(batch, length, width), torch.empty(batch, heads, length)
        ctx.settings = (eps, batch, length, heads, width // heads, dropout.seed, dropout.probability)
        inputs = (qkv, q_gain, k_gain, cosine, sine)
        kernels.call("attention_forward", y, log_sums, *inputs, *ctx.settings)
        ctx.save_for_backward(y, log_sums, *inputs)
        ctx.kernels, ctx.head_width = kernels, width // heads
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Sequence[Tensor | None]:
        y, log_sums, *inputs = ctx.saved_tensors
        dqkv = torch.empty_like(inputs[0])
        gains = [torch.zeros(torch.get_num_threads(), ctx.head_width) for _ in range(2)]
        ctx.kernels.call("attention_backward", dqkv, *gains, dy.contiguous(), y, log_sums, *inputs, *ctx.settings)
        has_gains = inputs[1] is not None
        dgains = [gain.sum(dim=0) if has_gains else None for gain in gains]
        return None, dqkv, *dgains, None, None, None, None, None
