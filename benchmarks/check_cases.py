"""Our kernels, and operators of torch in float32 that they must not be far slower than."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.generation import DecodeOptions, build_runtime
from gpt.kernels.training.functions import Dropout, NormOptions, activate, add_norm, attention, drop_out, linear
from gpt.kernels.training.library import Kernels
from gpt.model import GPT
from gpt.model.feed_forward import relu2
from gpt.model.quantized import NAMES, quantize
from gpt.training.muon import orthogonalize

ROWS, WIDTH = 512, 384
Function = Callable[..., Tensor]
LIMITS = {
    "residual and norm": (3.0, 2.0),
    "gelu": (5.0, 4.0),
    "relu": (4.0, 4.0),
    "relu2": (2.0, 1.5),
    "swiglu": (3.0, 2.0),
    "attention": (3.0, 4.0),
    "linear": (3.0, 3.0),
}
"""Forward and backward: two to six times what was measured on AMX, AVX-512 and AVX2, and less than ten times on AMX."""
BFLOAT16_LIMIT = 1.35
"""Of kernels that are mostly matmuls: bfloat16 is chosen where it is faster than float32."""
DECODED = 8
"""Tokens of a decoding case."""


@dataclass(frozen=True)
class Case:
    """A kernel beside its reference.

    Attributes:
        name: of the kernel and its type.
        ours: runs it once.
        reference: runs what it is compared with once.
        limit: how many times the reference's time is too much.
    """

    name: str
    ours: Callable[[], object]
    reference: Callable[[], object]
    limit: float


def swiglu(x: Tensor) -> Tensor:
    """`silu(gate) * up` of both side by side, (..., 2 F) -> (..., F)."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


PLAIN: dict[str, Function] = {"gelu": F.gelu, "relu": F.relu, "relu2": relu2, "swiglu": swiglu}


def training_cases(kernels: Kernels) -> Iterator[Case]:
    """Each training kernel in one type, forward and backward."""
    norm = NormOptions(centred=False, eps=1e-5)
    stream, gain = _leaf(ROWS, WIDTH), _leaf(WIDTH)
    y = _leaf(ROWS, WIDTH, dtype=kernels.dtype)
    yield from _both(
        kernels.dtype,
        "residual and norm",
        partial(_normed, kernels, options=norm),
        (stream, y, gain),
        _plain_norm,
        (stream, _leaf(ROWS, WIDTH), gain),
    )
    for name, plain in PLAIN.items():
        inputs, plain_inputs = (_leaf(ROWS, 4 * WIDTH, dtype=kernels.dtype),), (_leaf(ROWS, 4 * WIDTH),)
        yield from _both(kernels.dtype, name, partial(_activated, kernels, name), inputs, plain, plain_inputs)
    yield from _both(
        kernels.dtype,
        "attention",
        lambda x: attention(kernels, x, 6, None, None, 1e-5, Dropout()),
        (_leaf(2, 256, 3 * WIDTH, dtype=kernels.dtype),),
        _plain_attention,
        (_leaf(2, 256, 3 * WIDTH),),
    )
    yield from _both(
        kernels.dtype,
        "linear",
        partial(linear, kernels),
        (_leaf(ROWS, WIDTH, dtype=kernels.dtype), _leaf(4 * WIDTH, WIDTH)),
        F.linear,
        (_leaf(ROWS, WIDTH), _leaf(4 * WIDTH, WIDTH)),
    )
    if kernels.dtype == torch.float32:
        x = torch.randn(ROWS, 4 * WIDTH)
        yield Case("dropout", lambda: drop_out(kernels, x, Dropout(0.2, 1)), lambda: x * 1.25, 5)


def optimizer_case(dtype: torch.dtype) -> Case:
    """Muon's iteration in the type it runs in, against one float32 matmul of as many FLOPs."""
    count, size, steps = 2, 256, 5
    matrices = torch.randn(count, size, size).to(dtype)
    a, b = torch.randn(size, size), torch.randn(size, 3 * count * steps * size)
    limit = BFLOAT16_LIMIT if dtype == torch.bfloat16 else 4
    name = f"Newton-Schulz, {str(dtype).removeprefix('torch.')}"
    return Case(name, lambda: orthogonalize(matrices, steps), lambda: a @ b, limit)


def decoding_cases() -> Iterator[Case]:
    """Tokens by each kind of weights, alone and 32 at once, against torch's matmuls of as many float32 weights."""
    torch.manual_seed(1)
    model = GPT(ModelConfig(n_layer=2, n_head=6, n_embd=384, block_size=64, vocab_size=65)).eval()
    matrices = [layer.weight for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    params = SamplingParams(max_new_tokens=DECODED)
    for weights in ("float32", *NAMES):
        runtime = build_runtime(
            model if weights == "float32" else quantize(model, weights), DecodeOptions(backend="native")
        )
        for batch in (1, 32):
            yield Case(
                f"decoding, {weights}, batch {batch}",
                partial(_decode, runtime, batch, params),
                partial(_multiply, matrices, batch),
                3 if batch == 1 else 5,
            )


def _both(
    dtype: torch.dtype,
    name: str,
    ours: Function,
    inputs: tuple[Tensor, ...],
    plain: Function,
    plain_inputs: tuple[Tensor, ...],
) -> Iterator[Case]:
    forward, backward = LIMITS[name]
    if dtype == torch.bfloat16 and name in ("attention", "linear"):
        forward = backward = BFLOAT16_LIMIT
    title = f"{name}, {str(dtype).removeprefix('torch.')}"
    yield Case(f"{title}, forward", partial(ours, *inputs), partial(plain, *plain_inputs), forward)
    yield Case(f"{title}, backward", _backward(ours, inputs), _backward(plain, plain_inputs), backward)


def _backward(function: Function, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    output = function(*inputs)
    gradient = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def _leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


def _normed(kernels: Kernels, x: Tensor, y: Tensor, gain: Tensor, options: NormOptions) -> Tensor:
    return add_norm(kernels, x, y, gain, options, Dropout())[1]


def _plain_norm(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x + y, (WIDTH,), gain)


def _activated(kernels: Kernels, name: str, x: Tensor) -> Tensor:
    return activate(kernels, x, name)


def _plain_attention(qkv: Tensor) -> Tensor:
    q, k, v = (part.view(*part.shape[:-1], 6, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _decode(runtime: Any, batch: int, params: SamplingParams) -> None:
    decoder = runtime.decoder([[0]] * batch, params, range(batch))
    for _ in range(DECODED):
        decoder.step()


@torch.inference_mode()
def _multiply(matrices: list[Tensor], batch: int) -> None:
    inputs = {matrix.size(1): torch.ones(batch, matrix.size(1)) for matrix in matrices}
    for _ in range(DECODED):
        for matrix in matrices:
            F.linear(inputs[matrix.size(1)], matrix)
