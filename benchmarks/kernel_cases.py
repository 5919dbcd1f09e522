"""Our kernels, and operators of torch in float32 that they must not be far slower than."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.environment import read_settings
from gpt.generation import Batch
from gpt.generation.backends.selection import DecodeOptions, Runtime, build_runtime
from gpt.kernels.training.bindings import Kernels, load_kernels
from gpt.kernels.training.functions import (
    Dropout,
    NormOptions,
    activate,
    add_norm,
    attention,
    drop_out,
    linear,
    matmul,
    short_conv,
)
from gpt.model import GPT
from gpt.model.layers import relu2
from gpt.model.quantized import NAMES, quantize
from gpt.processor import supported_processors
from gpt.progress import Report
from gpt.training.muon import orthogonalize

ROWS, WIDTH, TAPS = 512, 384, 4
Function = Callable[..., Tensor]
BFLOAT16_LIMIT = 1.35
"""Of kernels that are mostly matmuls: bfloat16 is chosen where it is faster than float32."""
DECODED = 8
"""Tokens of a decoding case."""


@dataclass(frozen=True)
class Case:
    """A kernel and its reference, each run once by a call; `limit`: times the reference's time that are too much."""

    name: str
    ours: Callable[[], object]
    reference: Callable[[], object]
    limit: float


def swiglu(x: Tensor) -> Tensor:
    """Compute `silu(gate) * up` of both side by side, (..., 2 F) -> (..., F)."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


ACTIVATIONS: dict[str, tuple[Function, tuple[float, float]]] = {
    "gelu": (F.gelu, (5, 4)),
    "relu": (F.relu, (4, 4)),
    "relu2": (relu2, (2, 1.5)),
    "swiglu": (swiglu, (3, 2)),
}
"""Plain function, and limits of forward and backward."""


def all_cases(report: Report) -> Iterator[Case]:
    """Yield all kernels that this processor has."""
    settings = read_settings()
    fast = supported_processors(settings.processor)[0].matmul_dtype
    for dtype in dict.fromkeys((torch.float32, fast)):
        yield from training_cases(load_kernels(dtype, settings, report))
    yield optimizer_case(fast)
    yield from decoding_cases()


def training_cases(kernels: Kernels) -> Iterator[Case]:
    """Yield each training kernel in one type, forward and backward.

    The limits are two to six times what was measured on AMX, AVX-512 and AVX2, and less than ten times on AMX.
    """
    is_fast, norm, none = kernels.dtype == torch.bfloat16, NormOptions(centered=False, eps=1e-5), Dropout()

    def both(
        name: str, ours: Function, plain: Function, limits: tuple[float, float], *shapes: tuple[int, ...]
    ) -> Iterator[Case]:
        """Yield both directions; the first input is in the kernels' type, the others in float32."""
        plain_inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
        inputs = [torch.randn(shapes[0]).to(kernels.dtype), *(torch.randn(shape) for shape in shapes[1:])]
        inputs = [each.requires_grad_() for each in inputs]
        title = f"{name}, {_name(kernels.dtype)}"
        yield Case(f"{title}, forward", partial(ours, *inputs), partial(plain, *plain_inputs), limits[0])
        yield Case(f"{title}, backward", _backward(ours, inputs), _backward(plain, plain_inputs), limits[1])

    def ours(y: Tensor, x: Tensor, gain: Tensor) -> Tensor:
        return add_norm(kernels, x, y, gain, norm, none)[1]

    def plain(y: Tensor, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x + y, (WIDTH,), gain)

    wide, qkv, fast = (ROWS, 4 * WIDTH), (2, 256, 3 * WIDTH), (BFLOAT16_LIMIT, BFLOAT16_LIMIT)
    yield from both("residual and norm", ours, plain, (3, 2), (ROWS, WIDTH), (ROWS, WIDTH), (WIDTH,))
    for name, (function, limits) in ACTIVATIONS.items():
        yield from both(name, partial(lambda name, x: activate(kernels, x, name), name), function, limits, wide)
    limits = fast if is_fast else (3, 4)
    yield from both(
        "attention", lambda x: attention(kernels, x, 6, None, None, 1e-5, none), _plain_attention, limits, qkv
    )
    filters = (WIDTH, 1, TAPS)
    yield from both(
        "short convolution", partial(short_conv, kernels), _plain_conv, (0.4, 0.4), (2, 256, WIDTH), filters
    )
    weight = (4 * WIDTH, WIDTH)
    yield from both("linear", partial(linear, kernels), F.linear, fast if is_fast else (3, 3), (ROWS, WIDTH), weight)
    if not is_fast:
        x = torch.randn(ROWS, 4 * WIDTH)
        yield Case("dropout", lambda: drop_out(kernels, x, Dropout(0.2, 1)), lambda: x * 1.25, 5)
        y = torch.randn(ROWS, WIDTH)
        yield Case("matmul, float32", lambda: matmul(kernels, y.T, x), lambda: y.T @ x, 3)


def optimizer_case(dtype: torch.dtype) -> Case:
    """Return Muon's iteration in the type it runs in, against one float32 matmul of as many FLOPs."""
    count, size, steps = 2, 256, 5
    matrices = torch.randn(count, size, size).to(dtype)
    a, b = torch.randn(size, size), torch.randn(size, 3 * count * steps * size)
    limit = BFLOAT16_LIMIT if dtype == torch.bfloat16 else 4
    return Case(f"Newton-Schulz, {_name(dtype)}", lambda: orthogonalize(matrices, steps), lambda: a @ b, limit)


def decoding_cases() -> Iterator[Case]:
    """Yield decoding with each kind of weights, one sequence and 32, against torch's matmuls with float32 weights."""
    torch.manual_seed(1)
    model = GPT(ModelConfig(n_layer=2, n_head=6, n_embd=384, block_size=64, vocab_size=65)).eval()
    matrices = [layer.weight for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    for weights in ("float32", *NAMES):
        copied = model if weights == "float32" else quantize(model, weights)
        runtime = build_runtime(copied, DecodeOptions(backend="native"))
        for batch in (1, 32):
            ours, reference = partial(_decode, runtime, batch), partial(_multiply, matrices, batch)
            yield Case(f"decoding, {weights}, batch {batch}", ours, reference, 3 if batch == 1 else 5)


def _backward(function: Function, inputs: list[Tensor]) -> Callable[[], object]:
    output = function(*inputs)
    gradient = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _plain_attention(qkv: Tensor) -> Tensor:
    q, k, v = (part.view(*part.shape[:-1], 6, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def _plain_conv(h: Tensor, weight: Tensor) -> Tensor:
    return h + F.conv1d(F.pad(h.mT, (TAPS - 1, 0)), weight.flip(-1), groups=WIDTH).mT


def _decode(runtime: Runtime, batch: int) -> None:
    decoding = Batch(runtime, [[0]] * batch, SamplingParams(max_new_tokens=DECODED), range(batch))
    for _ in range(DECODED):
        decoding.step()


@torch.inference_mode()
def _multiply(matrices: list[Tensor], batch: int) -> None:
    inputs = {matrix.size(1): torch.ones(batch, matrix.size(1)) for matrix in matrices}
    for _ in range(DECODED):
        for matrix in matrices:
            F.linear(inputs[matrix.size(1)], matrix)
