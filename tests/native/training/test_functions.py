"""Every kernel, for every class of processor, against the same written out in float64 from the same
rounded inputs.

Tolerances are of the error's norm relative to the norm of what is right, unless said otherwise.
What leaves a kernel in bfloat16 is off by 2^-8 at most and by less than 2^-9 on the whole; what
goes through two matmuls of bfloat16 by a few times as much. In float32 all is within a few
roundings.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from native_support import PROCESSORS_HERE, double, error, needs_compiler
from torch import Tensor

from gpt.native.training.bindings import Kernels, load_kernels
from gpt.native.training.functions import (
    ACTIVATIONS,
    Dropout,
    HeadNorms,
    NormOptions,
    activate,
    add,
    add_norm,
    attention,
    drop_out,
    linear,
    matmul,
)
from gpt.system.environment import read_settings

pytestmark = needs_compiler

Function = Callable[..., Tensor | tuple[Tensor, ...]]
EXACT = 2e-6
"""Of sums in float32."""
NONE = Dropout()
LAYER = NormOptions(True, 1e-5)
RMS = NormOptions(False, 1e-5)


@pytest.fixture(scope="module", params=PROCESSORS_HERE, ids=lambda processor: processor.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    processor = request.param
    return load_kernels(processor.matmul_dtype, read_settings(), processor=processor)


def rounded(kernels: Kernels) -> float:
    """Relative error of rounding many numbers to the kernels' type."""
    return 2**-9 if kernels.dtype == torch.bfloat16 else EXACT


def one_rounded(kernels: Kernels) -> float:
    """Largest relative error of a single number."""
    return 1.001 * 2**-8 if kernels.dtype == torch.bfloat16 else EXACT


def narrow(kernels: Kernels, *shape: int, scale: float = 1.0) -> Tensor:
    """Return random numbers of the kernels' type that want a gradient."""
    return (scale * torch.randn(shape)).to(kernels.dtype).requires_grad_()


def wide(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
    """Random float32 that wants a gradient."""
    return (mean + scale * torch.randn(shape)).requires_grad_()


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], of: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    of = [g.to(y.dtype) for g, y in zip(of, outputs, strict=True)]
    return torch.autograd.grad(outputs, inputs, of, materialize_grads=True)


def check(
    native: Function, right: Function, inputs: Sequence[Tensor], limits: Sequence[float]
) -> None:
    """Compare results, and their gradients by the inputs, with those in float64; `limits` are their
    largest errors.
    """
    exact = [double(x) for x in inputs]
    found, expected = (
        y if isinstance(y, tuple) else (y,) for y in (native(*inputs), right(*exact))
    )
    of = [torch.randn(y.shape).to(y.dtype) for y in found]
    grads = gradients(found, inputs, of)
    assert [grad.dtype for grad in grads] == [x.dtype for x in inputs]
    pairs = zip((*found, *grads), (*expected, *gradients(expected, exact, of)), strict=True)
    errors = [error(one, other) for one, other in pairs]
    assert all(off < limit for off, limit in zip(errors, limits, strict=True)), errors


def norm_of(x: Tensor, gain: Tensor, options: NormOptions) -> Tensor:
    if options.centered:
        x = x - x.mean(dim=-1, keepdim=True)
    return x / (x.square().mean(dim=-1, keepdim=True) + options.eps).sqrt() * gain


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(16, 16), (48, 16), (16, 48), (64, 96), (112, 80), (32, 272)]
)
def test_linear(kernels: Kernels, outputs: int, inputs: int) -> None:
    """Weights beside each other too, as one product of which each weight gets its own gradient."""
    for shape in ((1, 1), (31,), (32,), (3, 11), (512,), (513,), (2, 550)):
        # of few numbers some may be off by more
        off = (one_rounded if shape == (1, 1) else rounded)(kernels)
        limits = [off, off, EXACT, EXACT]
        weights = [
            narrow(kernels, width, inputs).detach().float().requires_grad_()
            for width in (outputs, 32)
        ]
        given = [narrow(kernels, *shape, inputs), *weights]
        check(
            partial(linear, kernels),
            lambda x, *weights: F.linear(x, torch.cat(weights)),
            given,
            limits,
        )
        check(partial(linear, kernels), F.linear, given[:2], limits[:3])


MATMULS = [(1, 1, 16), (5, 1000, 16), (7, 33, 48), (49, 513, 80), (301, 512, 112), (12, 1100, 272)]
"""Rows, depth, columns: fewer rows than a tile, more than a block.

Depths of a block, one more, and of several.
"""


@pytest.mark.parametrize(
    "kernels", [p for p in PROCESSORS_HERE if p.matmul_dtype == torch.float32], indirect=True
)
@pytest.mark.parametrize(("rows", "depth", "columns"), MATMULS)
def test_matmul(kernels: Kernels, rows: int, depth: int, columns: int) -> None:
    """Of transposes too; the number of threads does not change a bit."""
    a = torch.randn(rows, depth)
    b = torch.randn(depth, columns)
    for left in (a, a.T.contiguous().T):
        for right in (b, b.T.contiguous().T):
            results = []
            for threads in (1, 2, 7):
                torch.set_num_threads(threads)
                results.append(matmul(kernels, left, right))
            assert error(results[0], a.double() @ b.double()) < EXACT
            assert all(torch.equal(results[0], other) for other in results[1:])


def test_weights_are_rounded_to_the_nearest_number_of_the_type(kernels: Kernels) -> None:
    x = narrow(kernels, 7, 32)
    weight = wide(48, 32)
    nearest = weight.detach().to(kernels.dtype).float()
    assert torch.equal(linear(kernels, x, weight), linear(kernels, x, nearest))


@pytest.mark.parametrize("options", [LAYER, RMS], ids=["layernorm", "rmsnorm"])
@pytest.mark.parametrize("adds", [True, False], ids=["sum", "alone"])
@pytest.mark.parametrize(
    "used", [slice(2), slice(1), slice(1, 2)], ids=["both", "stream", "normed"]
)
def test_add_norm(kernels: Kernels, options: NormOptions, adds: bool, used: slice) -> None:
    """Also where only one of its results is used."""

    def native(x: Tensor, gain: Tensor, y: Tensor | None = None) -> Any:
        return add_norm(kernels, x, y, gain, options, NONE)[used]

    def right(x: Tensor, gain: Tensor, y: Tensor | float = 0.0) -> Any:
        return (x + y, norm_of(x + y, gain, options))[used]

    for shape in ((1, 1, 16), (3, 7, 32), (2, 16, 400)):
        inputs = [wide(*shape, scale=2.0, mean=0.5), wide(shape[-1], scale=0.3, mean=1.0)]
        inputs += [narrow(kernels, *shape)] * adds
        of_results = [EXACT, rounded(kernels)][used]
        check(native, right, inputs, [*of_results, EXACT, EXACT, *[rounded(kernels)] * adds])


def test_a_norm_far_from_zero_loses_nothing_to_cancellation(kernels: Kernels) -> None:
    """The variance is of differences from the mean, not a difference of means."""
    x = wide(4, 64, scale=0.01, mean=100.0)
    _, normed = add_norm(kernels, x, None, torch.ones(64), LAYER, NONE)
    right = norm_of(double(x), torch.ones(64).double(), LAYER)
    assert error(normed, right) < 2**-8  # of the mean, which is a thousand times the deviation


def test_gradients_that_are_not_contiguous_are_read_by_strides(kernels: Kernels) -> None:
    x = wide(32, 32)
    y = narrow(kernels, 32, 32)
    gain = wide(32)
    turned = torch.randn(32, 32).t()
    for function in (
        lambda: add(kernels, x, y, NONE),
        lambda: add_norm(kernels, x, y, gain, RMS, NONE)[0],
    ):
        one, other = (gradients([function()], [x, y], [of]) for of in (turned, turned.contiguous()))
        assert all(map(torch.equal, one, other))


WRITTEN_OUT = {"relu": F.relu, "relu2": lambda x: F.relu(x).square(), "gelu": F.gelu}


@pytest.mark.parametrize("name", sorted(WRITTEN_OUT))
def test_activations_at_every_number_up_to_a_thousand(kernels: Kernels, name: str) -> None:
    """There are so few in bfloat16 that all can be tried."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).to(kernels.dtype)
    x = every[every.abs() <= 1000]
    x = F.pad(x, (0, -len(x) % 16)).requires_grad_()
    y = activate(kernels, x, name)
    x64 = double(x)
    right = WRITTEN_OUT[name](x64)
    torch.testing.assert_close(y.double(), right, rtol=one_rounded(kernels), atol=1e-6)
    dy = torch.linspace(1, 2, len(x)).to(kernels.dtype)
    (dx,), (right_dx,) = gradients([y], [x], [dy]), gradients([right], [x64], [dy])
    torch.testing.assert_close(dx.double(), right_dx, rtol=one_rounded(kernels), atol=1e-6)


def test_swiglu_is_silu_of_the_gate_times_the_other_half(kernels: Kernels) -> None:
    x = narrow(kernels, 3, 5, 96, scale=3.0)
    check(
        lambda x: activate(kernels, x, "swiglu"),
        lambda x: F.silu(x[..., :48]) * x[..., 48:],
        [x],
        [rounded(kernels)] * 2,
    )
    for size in (90.0, 1e30):  # gates that are open or shut
        x = torch.ones(2, 32).to(kernels.dtype)
        x[0, :16] = size
        x[1, :16] = -size
        y = activate(kernels, x.requires_grad_(), "swiglu")
        torch.testing.assert_close(y[0], torch.full((16,), size).to(kernels.dtype))
        torch.testing.assert_close(y[1], torch.zeros(16).to(kernels.dtype), atol=1e-7, rtol=0)
        assert gradients([y], [x], [torch.ones_like(y)])[0].isfinite().all()


Tensors = Sequence[Tensor]


def rotation(length: int, width: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(
        torch.arange(length), 10000 ** (-torch.arange(0, width, 2) / width)
    ).repeat(1, 2)
    return angles.cos().float(), angles.sin().float()


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def written_out(
    inputs: Tensors, heads: int, turning: tuple[Tensor, Tensor] | None, keep: Tensor | None = None
) -> Tensor:
    """Attention in the inputs' type; `keep` (B, H, T, T) multiplies the weights."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in inputs[:3])
    if len(inputs) > 3:
        q, k = norm_of(q, inputs[3], RMS), norm_of(k, inputs[4], RMS)
    if turning is not None:
        cos, sin = (table.to(q.dtype) for table in turning)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
    causal = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).tril()
    weights = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~causal, -math.inf).softmax(dim=-1)
    if keep is not None:
        weights = weights * keep
    return (weights @ v).transpose(1, 2).flatten(2)


def attention_inputs(
    kernels: Kernels, batch: int, length: int, heads: int, width: int, gains: bool = False
) -> Tensors:
    qkv = [narrow(kernels, batch, length, heads * width, scale=1.5) for _ in range(3)]
    return qkv + [wide(width, scale=0.3, mean=1.5) for _ in range(2 if gains else 0)]


def attend(
    kernels: Kernels,
    inputs: Tensors,
    heads: int,
    turning: tuple[Tensor, Tensor] | None = None,
    dropout: Dropout = NONE,
) -> Tensor:
    """The kernel on queries, keys, values and perhaps gains of their own."""
    norms = HeadNorms(inputs[3], inputs[4], RMS.eps) if len(inputs) > 3 else None
    return attention(kernels, torch.cat(inputs[:3], dim=-1), heads, norms, turning, dropout)


LENGTHS = (1, 7, 16, 31, 32, 33, 100, 128, 256)
WIDTHS = (32, 64, 96, 128)
PREPARED = ("plain", "gains", "rotated", "both")
ATTENDED = [
    *(
        (w, t, PREPARED[(row + column) % 4], 0)
        for row, t in enumerate(LENGTHS)
        for column, w in enumerate(WIDTHS)
    ),
    *((256, 40, "gains", 0), (32, 1000, "gains", 0)),
    *((32, 20, "both", 0.3), (64, 33, "plain", 0.3), (128, 128, "both", 0.3)),
]
"""Each two of a length, a width and what is done to queries and keys meet.

The widest head, a long row, and dropout.
"""


@pytest.mark.parametrize(("width", "length", "prepared", "probability"), ATTENDED)
def test_attention(
    kernels: Kernels, width: int, length: int, prepared: str, probability: float
) -> None:
    """Result, gradients of q, k and v, and of the gains.

    Dropout drops the same weights on the way back.
    """
    batch, heads = (1, 1) if (length + width // 32) % 2 else (3, 4)
    turning = rotation(length, width) if prepared in ("rotated", "both") else None
    dropout = Dropout(probability, 2**32 - 5)
    keep = weights_mask(kernels, batch, length, heads, width, dropout) if probability else None
    inputs = attention_inputs(
        kernels, batch, length, heads, width, gains=prepared in ("gains", "both")
    )
    if length > 1:
        limits = (
            [6e-3, 1.2e-2, 1.2e-2, 6e-3, 1.2e-2, 1.2e-2]
            if kernels.dtype == torch.bfloat16
            else [5e-6] * 6
        )
        check(
            lambda *given: attend(kernels, given, heads, turning, dropout),
            lambda *given: written_out(given, heads, turning, keep),
            inputs,
            limits[: 1 + len(inputs)],
        )
    else:  # one key: weights do not depend on queries and keys
        y = attend(kernels, inputs, heads, turning)
        dy = torch.randn_like(y)
        dq, dk, dv, *dgains = gradients([y], inputs, [dy])
        assert torch.equal(y, inputs[2])
        assert error(dv, dy.double()) < rounded(kernels)
        assert all(grad.abs().max() < 0.1 for grad in (dq, dk, *dgains))


@pytest.mark.parametrize("cut", [1, 16, 17, 63])
def test_later_tokens_do_not_change_a_bit_of_earlier_results(kernels: Kernels, cut: int) -> None:
    inputs = attention_inputs(kernels, 2, 64, 2, 32, gains=True)
    turning = rotation(64, 32)
    y = attend(kernels, inputs, 2, turning)
    changed = [x.detach().clone() for x in inputs]
    for x in changed[:3]:
        x[:, cut:] = 7 * torch.randn_like(x[:, cut:])
    assert torch.equal(attend(kernels, changed, 2, turning)[:, :cut], y[:, :cut])
    dy = torch.randn_like(y)
    dy[:, cut:] = 0
    for gradient, is_value in zip(gradients([y], inputs, [dy]), (False, False, True), strict=False):
        assert not gradient[:, cut:].any()
        # Where there is one key, it has all the weight, and only its value has a gradient.
        assert gradient[:, :cut].any() or (cut == 1 and not is_value)


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_scores_however_large_choose_a_key(kernels: Kernels, scale: float) -> None:
    """Every query knows its key: itself, or the one before."""
    keys = torch.eye(48, 64).to(kernels.dtype)
    chosen = (torch.arange(48) - torch.arange(48) % 2).clamp(min=0)
    q = (scale * keys[chosen])[None].requires_grad_()
    k = keys[None].clone().requires_grad_()
    v = narrow(kernels, 1, 48, 64)
    y = attend(kernels, [q, k, v], 1)
    dy = torch.randn(1, 48, 64).to(kernels.dtype)
    assert torch.equal(y, v[:, chosen])
    dq, dk, dv = gradients([y], [q, k, v], [dy])
    assert dq.abs().max() < 1e-5
    assert dk.abs().max() < 1e-5 * scale
    torch.testing.assert_close(
        dv[0, ::2], (dy[0, ::2].float() + dy[0, 1::2].float()).to(kernels.dtype)
    )
    assert dv[0, 1::2].abs().max() < 1e-30


def weights_mask(
    kernels: Kernels, batch: int, length: int, heads: int, width: int, dropout: Dropout
) -> Tensor:
    """What dropout multiplies the attention weights by, (B, H, T, T).

    Queries of zeros look everywhere alike, and values that are unit vectors show where: as many
    keys at a time as a head is wide.
    """
    zeros = torch.zeros(batch, length, heads * width, dtype=kernels.dtype)
    found = torch.zeros(batch, heads, length, length)
    for first in range(0, length, width):
        keys = min(width, length - first)
        v = torch.zeros(batch, length, heads, width, dtype=kernels.dtype)
        v[:, first : first + keys, :, :keys] = torch.eye(keys, dtype=kernels.dtype).unsqueeze(1)
        y = attend(kernels, [zeros, zeros, v.flatten(2)], heads, dropout=dropout)
        found[..., first : first + keys] = (
            y.float().unflatten(-1, (heads, width)).transpose(1, 2)[..., :keys]
        )
    return (found > 0).double() / (1 - dropout.probability)


def stream_mask(kernels: Kernels, rows: int, width: int, dropout: Dropout) -> Tensor:
    """What dropout multiplies its input, or the second term of a sum, by: (rows, width)."""
    ones = torch.ones(rows, width, dtype=kernels.dtype)
    stream, _ = add_norm(kernels, torch.zeros(rows, width), ones, torch.ones(width), LAYER, dropout)
    assert torch.equal(add(kernels, torch.zeros(rows, width), ones, dropout), stream)
    assert torch.equal(drop_out(kernels, torch.ones(rows, width), dropout), stream)
    return stream


def triangle(mask: Tensor) -> Tensor:
    """The weights that exist, below the diagonal."""
    return mask[..., torch.ones(mask.shape[-2:], dtype=torch.bool).tril()]


@pytest.mark.parametrize(("probability", "seed"), [(0.01, 0), (0.2, 1), (0.5, 2**32 - 1), (0.9, 1)])
def test_dropout_drops_so_many_and_scales_up_the_rest(
    kernels: Kernels, probability: float, seed: int
) -> None:
    """By five standard deviations; the mean stays."""
    dropout = Dropout(probability, seed)
    stream = stream_mask(kernels, 128, 384, dropout)
    for mask in (stream, triangle(weights_mask(kernels, 2, 100, 3, 128, dropout))):
        deviation = math.sqrt(probability * (1 - probability) / mask.numel())
        assert abs(float((mask == 0).double().mean()) - probability) < 5 * deviation
    assert stream[stream != 0].unique().tolist() == [pytest.approx(1 / (1 - probability))]


def correlation(one: Tensor, other: Tensor) -> float:
    """Of two masks, in standard deviations of what independent ones would have."""
    one, other = (
        (one.flatten().double() - one.double().mean()),
        (other.flatten().double() - other.double().mean()),
    )
    return float(abs(one @ other) / (one.norm() * other.norm()) * math.sqrt(one.numel()))


def test_masks_of_rows_columns_heads_and_seeds_are_independent(kernels: Kernels) -> None:
    mask = stream_mask(kernels, 256, 512, Dropout(0.5, 3)).double() - 1
    for matrix, among in (
        (mask @ mask.T, 512),
        (mask.T @ mask, 256),
    ):  # of every two rows, of every two columns
        among_others = matrix.fill_diagonal_(0).abs().max() / math.sqrt(among)
        assert among_others < 6.5
    assert all(correlation(mask[:, lag:], mask[:, :-lag]) < 5 for lag in (1, 2, 15, 16, 17, 32))
    assert all(correlation(mask[lag:], mask[:-lag]) < 5 for lag in (1, 2, 16))
    for seed in (2, 4, 2**31 + 3):
        other = stream_mask(kernels, 256, 512, Dropout(0.5, seed)).double() - 1
        assert correlation(mask, other) < 5
        assert (mask @ other.T).abs().max() / math.sqrt(512) < 6.5  # of any two rows
    attending = weights_mask(kernels, 2, 128, 2, 128, Dropout(0.5, 3))
    heads = triangle(attending).flatten(0, 1)
    assert all(correlation(heads[i], heads[j]) < 5 for i in range(4) for j in range(i))
    other = triangle(weights_mask(kernels, 2, 128, 2, 128, Dropout(0.5, 4))).flatten(0, 1)
    assert all(correlation(one, two) < 5 for one, two in zip(heads, other, strict=True))


@pytest.mark.parametrize("dropout", [NONE, Dropout(0.0, 5), Dropout(0.3, 11)], ids=str)
@pytest.mark.parametrize("options", [LAYER, RMS], ids=["layernorm", "rmsnorm"])
def test_sums_drop_the_same_elements_on_the_way_back(
    kernels: Kernels, options: NormOptions, dropout: Dropout
) -> None:
    mask = stream_mask(kernels, 21, 48, dropout).double()
    assert (mask == 1).all() or dropout.probability > 0
    x = wide(21, 48)
    y = narrow(kernels, 21, 48)
    gain = wide(48, scale=0.3, mean=1.0)

    def right(x: Tensor, y: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        return x + mask * y, norm_of(x + mask * y, gain, options)

    limits = [EXACT, rounded(kernels), EXACT, rounded(kernels), EXACT]
    check(
        lambda x, y, gain: add_norm(kernels, x, y, gain, options, dropout),
        right,
        [x, y, gain],
        limits,
    )
    out = add(kernels, x, y, dropout)
    dout = torch.randn(21, 48)
    dx, dy = gradients([out], [x, y], [dout])
    (alone,) = gradients([drop_out(kernels, x, dropout)], [x], [dout])
    assert error(out, x.double() + mask * y.double()) < EXACT
    if dropout is NONE:
        assert torch.equal(out, x + y.float())
    assert torch.equal(dx, dout)
    assert error(dy, mask * dout.double()) < rounded(kernels)
    assert error(alone, mask * dout.double()) < EXACT


def everything(kernels: Kernels, dropout: Dropout) -> tuple[Tensors, Tensors]:
    """Results and gradients of all kernels; and gradients of gains, which are sums over rows."""
    torch.manual_seed(0)
    inputs = attention_inputs(kernels, 3, 45, 3, 32, gains=True)
    x = wide(3, 45, 96)
    y = narrow(kernels, 3, 45, 96)
    gain = wide(96)
    results = [
        attend(kernels, inputs, 3, rotation(45, 32), dropout),
        *add_norm(kernels, x, y, gain, LAYER, dropout),
        add(kernels, x, y, dropout),
        activate(kernels, y, "gelu"),
    ]
    of = [torch.randn_like(result) for result in results]
    *plain, one, two, three = gradients(results, [*inputs[:3], x, y, *inputs[3:], gain], of)
    return [*results, *plain], [one, two, three]


@pytest.mark.parametrize("dropout", [NONE, Dropout(0.2, 5)])
def test_results_are_equal_in_every_call_and_number_of_threads(
    kernels: Kernels, dropout: Dropout
) -> None:
    """But for the sums over rows, which are added up in another order."""
    once, sums = everything(kernels, dropout)
    for threads in (1, 2, 2, 7):
        torch.set_num_threads(threads)
        again, other_sums = everything(kernels, dropout)
        assert all(map(torch.equal, once, again))
        for one, other in zip(sums, other_sums, strict=True):
            assert torch.equal(one, other) if threads == 1 else error(other, one.double()) < EXACT


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
def test_attention_to_what_is_not_finite_is_not_finite(
    kernels: Kernels, which: int, value: float
) -> None:
    """A run that diverges must be seen to."""
    inputs = [x.detach() for x in attention_inputs(kernels, 1, 40, 1, 32)]
    inputs[which][0, 20] = value
    spoiled = ~attend(kernels, inputs, 1).isfinite().all(dim=-1)[0]
    assert spoiled[20]
    assert which == 0 or spoiled[20:].all()


def test_an_activation_sum_or_norm_of_nan_is_nan(kernels: Kernels) -> None:
    x = torch.randn(2, 32)
    y = torch.zeros(2, 32).to(kernels.dtype)
    y[0, 3] = math.nan
    for name in ACTIVATIONS:
        assert activate(kernels, y, name).isnan().nonzero().tolist() == [[0, 3]]
    stream, normed = add_norm(kernels, x, y, torch.ones(32), LAYER, NONE)
    assert stream.isnan().sum() == add(kernels, x, y, NONE).isnan().sum() == 1
    assert normed.isnan().all(dim=-1).tolist() == [True, False]


@pytest.mark.parametrize("name", ["linear", "add_norm", "add", "drop_out", "activate", "attention"])
def test_second_derivatives_are_refused(kernels: Kernels, name: str) -> None:
    x = wide(2, 4, 32)
    y = narrow(kernels, 2, 4, 32)
    functions: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: linear(kernels, y, wide(32, 32)),
        "add_norm": lambda: add_norm(kernels, x, y, wide(32), LAYER, NONE)[1],
        "add": lambda: add(kernels, x, y, NONE),
        "drop_out": lambda: drop_out(kernels, x, Dropout(0.5, 1)),
        "activate": lambda: activate(kernels, y, "gelu"),
        "attention": lambda: attention(kernels, torch.cat([y, y, y], dim=-1), 1, None, None, NONE),
    }
    source = x if name == "drop_out" else y
    (gradient,) = torch.autograd.grad(
        functions[name]().float().square().sum(), source, create_graph=True
    )
    with pytest.raises(RuntimeError, match="trying to differentiate twice"):
        gradient.float().square().sum().backward()
