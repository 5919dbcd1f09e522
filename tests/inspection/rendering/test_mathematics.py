from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import OptimConfig
from gpt.evaluation.loss import summed_cross_entropy
from gpt.inspection.rendering import mathematics
from gpt.model.attention import ReferenceCore
from gpt.model.gpt import Block
from gpt.model.layers import MLP, RMSNorm, SwiGLU
from gpt.model.short_conv import ShortConv
from gpt.training.schedule import learning_rate
from tiny import tiny_config

TOLERANCE = 1e-10
EPS = 1e-5

over_leading = pytest.mark.parametrize("leading", [(), (7,), (2, 1), (2, 3, 4)], ids=str)
over_widths = pytest.mark.parametrize("width", [1, 9])
over_scales = pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0])
over_heads = pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "width"),
    [(1, 1, 1, 1, 1), (1, 1, 4, 4, 3), (2, 3, 1, 1, 4), (2, 3, 5, 5, 4), (2, 2, 3, 7, 8), (3, 4, 1, 6, 2)],
)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def by_autograd(forward: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(forward(*leaves), leaves, grad)


def assert_all_equal(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert_equal(one, other)


def randomized(module: nn.Module) -> Any:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.double()


@pytest.mark.parametrize("tokens", [[0], [3, 3, 3], [[1, 4, 1], [0, 1, 4]]], ids=str)
def test_embedding(tokens: list[int]) -> None:
    ids, layer = torch.tensor(tokens), nn.Embedding(6, 4, dtype=torch.float64)
    grad = normal(*ids.shape, 4)
    assert_equal(mathematics.embedding(ids, layer.weight), layer(ids))
    layer(ids).backward(grad)
    assert_equal(mathematics.embedding_backward(grad, ids, 6), layer.weight.grad)


@over_leading
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (4, 3)])
def test_linear(leading: tuple[int, ...], inputs: int, outputs: int) -> None:
    x, weight, bias, grad = (
        normal(*leading, inputs),
        normal(outputs, inputs),
        normal(outputs),
        normal(*leading, outputs),
    )
    assert_equal(mathematics.linear(x, weight, bias), F.linear(x, weight, bias))
    expected = by_autograd(mathematics.linear, grad, x, weight, bias)
    assert_all_equal(mathematics.linear_backward(grad, x, weight), expected)


@over_leading
@over_widths
@over_scales
def test_layer_norm(leading: tuple[int, ...], width: int, scale: float) -> None:
    layer, x, grad = (
        randomized(nn.LayerNorm(width, EPS)),
        normal(*leading, width, scale=scale),
        normal(*leading, width),
    )
    weight, bias = layer.weight.detach(), layer.bias.detach()
    assert_equal(mathematics.layer_norm(x, weight, bias, EPS), layer(x))
    expected = by_autograd(lambda x, w, b: F.layer_norm(x, (width,), w, b, EPS), grad, x, weight, bias)
    assert_all_equal(mathematics.layer_norm_backward(grad, x, weight, EPS), expected)


@over_leading
@over_widths
@over_scales
def test_rms_norm(leading: tuple[int, ...], width: int, scale: float) -> None:
    layer, x, grad = randomized(RMSNorm(width, EPS)), normal(*leading, width, scale=scale), normal(*leading, width)
    weight = layer.weight.detach()
    assert_equal(mathematics.rms_norm(x, weight, EPS), layer(x))
    expected = by_autograd(lambda x, w: F.rms_norm(x, (width,), w, EPS), grad, x, weight)
    assert_all_equal(mathematics.rms_norm_backward(grad, x, weight, EPS), expected)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (3, 9, 2)], ids=str)
@pytest.mark.parametrize("span", [2, 4, 8])
def test_causal_conv(shape: tuple[int, int, int], span: int) -> None:
    layer, h, grad = randomized(ShortConv(shape[-1], span)), normal(*shape), normal(*shape)
    weight = layer.weight.detach()
    assert_equal(mathematics.causal_conv(h, weight), layer(h, None, None))
    expected = by_autograd(mathematics.causal_conv, grad, h, weight)
    assert_all_equal(mathematics.causal_conv_backward(grad, h, weight), expected)


@over_leading
@over_widths
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_softmax(leading: tuple[int, ...], width: int, scale: float) -> None:
    scores, grad = normal(*leading, width, scale=scale), normal(*leading, width)
    assert_equal(mathematics.softmax(scores), scores.softmax(-1))
    expected = by_autograd(lambda s: s.softmax(-1), grad, scores)
    assert_all_equal([mathematics.softmax_backward(grad, scores.softmax(-1))], expected)


def test_softmax_backward_is_the_jacobian_written_out() -> None:
    p, grad = normal(5).softmax(-1), normal(5)
    assert_equal(mathematics.softmax_backward(grad, p), (p.diag() - p.outer(p)) @ grad)


@over_heads
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_attention(batch: int, heads: int, queries: int, keys: int, width: int, scale: float) -> None:
    q = normal(batch, heads, queries, width, scale=scale)
    k, v = normal(batch, heads, keys, width, scale=scale), normal(batch, heads, keys, width)
    core, grad = ReferenceCore(dropout=0.0), normal(batch, heads, queries, width)
    assert_equal(mathematics.attention(q, k, v), core(q, k, v, None))
    expected = by_autograd(lambda q, k, v: core(q, k, v, None), grad, q, k, v)
    assert_all_equal(mathematics.attention_backward(grad, q, k, v), expected)


def test_attention_pattern_is_causal_and_its_rows_sum_to_one() -> None:
    pattern = mathematics.attention_pattern(normal(2, 3, 4, 5), normal(2, 3, 6, 5))
    assert_equal(pattern.sum(-1), torch.ones_like(pattern[..., 0]))
    assert torch.equal(pattern > 0, torch.ones(4, 6).tril(2).bool().expand_as(pattern))


def test_attention_backward_by_finite_differences() -> None:
    inputs, grad, h = [normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)], normal(1, 2, 3, 4), 1e-5
    backward = mathematics.attention_backward(grad, *inputs)
    for x, analytic in zip(inputs, backward, strict=True):
        numeric, flat = torch.empty(x.numel(), dtype=x.dtype), x.view(-1)
        for i, value in enumerate(flat.tolist()):
            flat[i] = value + h
            above = mathematics.attention(*inputs)
            flat[i] = value - h
            below = mathematics.attention(*inputs)
            flat[i] = value
            numeric[i] = ((above - below) * grad).sum() / (2 * h)
        torch.testing.assert_close(analytic, numeric.view_as(x), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("ours", "derivative", "torchs"),
    [
        (mathematics.gelu, mathematics.gelu_derivative, F.gelu),
        (mathematics.silu, mathematics.silu_derivative, F.silu),
    ],
    ids=["gelu", "silu"],
)
def test_activation(
    ours: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor], torchs: Callable[[Tensor], Tensor]
) -> None:
    x = torch.cat([torch.linspace(-12, 12, 2401, dtype=torch.float64), torch.tensor([-1e3, -40.0, 40.0, 1e3]).double()])
    assert_equal(ours(x), torchs(x))
    assert_all_equal([derivative(x)], by_autograd(torchs, torch.ones_like(x), x))


@over_leading
@over_scales
def test_feed_forward(leading: tuple[int, ...], scale: float) -> None:
    module = randomized(MLP(tiny_config(n_head=1, n_embd=3, mlp_width=7, mlp="gelu", bias=True)))
    parameters = [p.detach() for p in (*module.c_fc.parameters(), *module.c_proj.parameters())]
    x, grad = normal(*leading, 3, scale=scale), normal(*leading, 3)
    assert_equal(mathematics.feed_forward(x, *parameters), module(x))
    expected = by_autograd(
        lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2), grad, x, *parameters
    )
    assert_all_equal(mathematics.feed_forward_backward(grad, x, *parameters[:3]), expected)


@over_leading
@over_scales
def test_swiglu(leading: tuple[int, ...], scale: float) -> None:
    module = randomized(SwiGLU(tiny_config(n_head=1, n_embd=3, mlp_width=7, mlp="swiglu")))
    weights = [layer.weight.detach() for layer in (module.c_gate, module.c_fc, module.c_proj)]
    x, grad = normal(*leading, 3, scale=scale), normal(*leading, 3)
    assert_equal(mathematics.swiglu(x, *weights), module(x))
    expected = by_autograd(
        lambda x, gate, w1, w2: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, w1), w2), grad, x, *weights
    )
    assert_all_equal(mathematics.swiglu_backward(grad, x, *weights), expected)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 5), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_cross_entropy(shape: tuple[int, int, int], scale: float) -> None:
    logits, targets = normal(*shape, scale=scale), torch.randint(shape[-1], shape[:2])
    expected = summed_cross_entropy(logits, targets) / targets.numel()
    assert_equal(mathematics.cross_entropy(logits, targets), expected)
    gradients = by_autograd(
        lambda x: summed_cross_entropy(x, targets) / targets.numel(), torch.ones_like(expected), logits
    )
    assert_all_equal([mathematics.cross_entropy_backward(logits, targets)], gradients)


@pytest.mark.parametrize("length", [1, 6])
def test_a_layer_norm_gelu_block_is_these_parts(length: int) -> None:
    config = tiny_config(n_head=2, n_embd=6, bias=True, norm="layernorm", mlp="gelu", attention="reference")
    block, x, grad_y = randomized(Block(config)), normal(2, length, 6), normal(2, length, 6)
    p, m = {name: value.detach() for name, value in block.named_parameters()}, mathematics

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, 3)).transpose(1, 2)

    def merge(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    normed_1 = m.layer_norm(x, p["ln_1.weight"], p["ln_1.bias"], EPS)
    q, k, v = (split(m.linear(normed_1, p[f"attn.c_{i}.weight"], p[f"attn.c_{i}.bias"])) for i in "qkv")
    heads = merge(m.attention(q, k, v))
    middle = x + m.linear(heads, p["attn.c_proj.weight"], p["attn.c_proj.bias"])
    normed_2 = m.layer_norm(middle, p["ln_2.weight"], p["ln_2.bias"], EPS)
    mlp = [p[f"mlp.{name}"] for name in ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")]
    assert_equal(middle + m.feed_forward(normed_2, *mlp), block(x, None, None))

    grads: dict[str, Tensor] = {}
    grad_n2, *grad_mlp = m.feed_forward_backward(grad_y, normed_2, *mlp[:3])
    names = ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")
    grads |= {f"mlp.{name}": grad for name, grad in zip(names, grad_mlp, strict=True)}
    through, grads["ln_2.weight"], grads["ln_2.bias"] = m.layer_norm_backward(grad_n2, middle, p["ln_2.weight"], EPS)
    grad_middle = grad_y + through
    grad_heads, grads["attn.c_proj.weight"], grads["attn.c_proj.bias"] = m.linear_backward(
        grad_middle, heads, p["attn.c_proj.weight"]
    )
    grad_n1 = torch.zeros_like(x)
    for i, grad in zip("qkv", m.attention_backward(split(grad_heads), q, k, v), strict=True):
        part, grads[f"attn.c_{i}.weight"], grads[f"attn.c_{i}.bias"] = m.linear_backward(
            merge(grad), normed_1, p[f"attn.c_{i}.weight"]
        )
        grad_n1 += part
    through, grads["ln_1.weight"], grads["ln_1.bias"] = m.layer_norm_backward(grad_n1, x, p["ln_1.weight"], EPS)

    leaf = x.clone().requires_grad_()
    block(leaf, None, None).backward(grad_y)
    assert_equal(grad_middle + through, leaf.grad)
    assert grads.keys() == p.keys()
    for name, parameter in block.named_parameters():
        assert_equal(grads[name], parameter.grad)


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3, float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
def test_clip_by_global_norm(max_norm: float, scale: float) -> None:
    grads = [normal(4, 3, scale=scale), normal(5, scale=scale), normal(scale=scale)]
    parameters = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    nn.utils.clip_grad_norm_(parameters, max_norm)
    assert_all_equal(mathematics.clip_by_global_norm(grads, max_norm), [p.grad for p in parameters])


@pytest.mark.parametrize("weight_decay", [None, 0.0, 0.3])
@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-8), ((0.0, 0.5), 1e-2), ((0.9, 0.99), 1e-12)])
def test_adam_over_several_steps(weight_decay: float | None, betas: tuple[float, float], eps: float) -> None:
    theta = normal(4, 3)
    parameter, m, v = nn.Parameter(theta.clone()), torch.zeros_like(theta), torch.zeros_like(theta)
    if weight_decay is None:
        optimizer: torch.optim.Optimizer = torch.optim.Adam([parameter], betas=betas, eps=eps)
    else:
        optimizer = torch.optim.AdamW([parameter], betas=betas, eps=eps, weight_decay=weight_decay)
    for t in range(1, 8):
        grad, lr = normal(4, 3, scale=10.0 ** (3 - t)), 0.3 / t
        grad[0, 0] = 0.0
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = grad.clone()
        optimizer.step()
        theta = mathematics.decoupled_decay(theta, lr, weight_decay or 0.0)
        theta, m, v = mathematics.adam_update(theta, grad, m, v, t, lr, betas, eps)
        assert_equal(theta, parameter.detach())


@pytest.mark.parametrize(("warmup", "decay", "max_steps"), [(0, None, 40), (1, None, 40), (10, 30, 40), (10, 5, 40)])
def test_warmup_cosine_is_the_schedule_of_training(warmup: int, decay: int | None, max_steps: int) -> None:
    config = OptimConfig(learning_rate=2e-3, min_lr=3e-4, warmup_steps=warmup, decay_steps=decay)
    for step in range(max_steps + 10):
        rate = mathematics.warmup_cosine(step, warmup, decay or max_steps, 2e-3, 3e-4)
        assert rate == pytest.approx(learning_rate(step, config, max_steps), rel=1e-12)


def test_warmup_cosine_by_hand() -> None:
    rates = [mathematics.warmup_cosine(step, 4, 12, 1.0, 0.1) for step in (0, 3, 4, 8, 12, 100)]
    assert rates == pytest.approx([0.25, 1.0, 1.0, 0.55, 0.1, 0.1], rel=1e-12)
