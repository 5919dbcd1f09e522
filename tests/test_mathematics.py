"""The page of formulas: its code against the modules of the package, torch and autograd."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import OptimConfig, SamplingParams
from gpt.generation.sampling import next_token_probabilities
from gpt.model.attention import ReferenceCore
from gpt.model.layers import MLP, SwiGLU
from gpt.training.loss import summed_cross_entropy
from gpt.training.schedule import learning_rate
from tiny import tiny_config

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "book" / "mathematics.md").read_text(
    encoding="utf-8"
)
_names: dict[str, Any] = {}
exec("".join(re.findall(r"^```python\n((?:(?!^```).*\n)*)```$", PAGE, re.MULTILINE)), _names)
mathematics = SimpleNamespace(**_names)
"""What the code of the page defines."""
EPS = 1e-5
over_leading = pytest.mark.parametrize("leading", [(), (7,), (2, 3, 4)], ids=str)
over_scales = pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0])
assert_equal = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64)


def assert_pair(
    ours: Callable[..., Tensor], backward: Callable[..., Any], theirs: Any, *inputs: Tensor
) -> None:
    """Compare a function of some inputs with torch's, and its backward, given a gradient, with
    autograd's.
    """
    result = theirs(*inputs)
    assert_equal(ours(*inputs), result)
    grad = normal(*result.shape)
    leaves = [x.clone().requires_grad_() for x in inputs]
    assert_equal(backward(grad), torch.autograd.grad(theirs(*leaves), leaves, grad))


def randomized(module: nn.Module, *names: str) -> tuple[nn.Module, list[Tensor]]:
    """Draw the parameters of a module, and return those of its parts by name."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter)
    return module, [
        parameter.detach() for name in names for parameter in getattr(module, name).parameters()
    ]


def test_embedding() -> None:
    ids = torch.tensor([[1, 4, 1], [0, 1, 4]])
    assert_pair(
        lambda table: mathematics.embedding(ids, table),
        lambda grad: (mathematics.embedding_backward(grad, ids, 6),),
        lambda table: F.embedding(ids, table),
        normal(6, 4),
    )


@over_leading
def test_linear(leading: tuple[int, ...]) -> None:
    x = normal(*leading, 4)
    weight = normal(3, 4)
    bias = normal(3)
    backward = partial(mathematics.linear_backward, x=x, weight=weight)
    assert_pair(mathematics.linear, backward, F.linear, x, weight, bias)


@over_leading
@over_scales
@pytest.mark.parametrize("width", [1, 9])
def test_norms_and_softmax(leading: tuple[int, ...], width: int, scale: float) -> None:
    x = normal(*leading, width, scale=scale)
    weight = normal(width)
    bias = normal(width)
    assert_pair(
        partial(mathematics.layer_norm, eps=EPS),
        partial(mathematics.layer_norm_backward, x=x, weight=weight, eps=EPS),
        lambda x, w, b: F.layer_norm(x, (width,), w, b, EPS),
        *(x, weight, bias),
    )
    assert_pair(
        partial(mathematics.rms_norm, eps=EPS),
        partial(mathematics.rms_norm_backward, x=x, weight=weight, eps=EPS),
        lambda x, w: F.rms_norm(x, (width,), w, EPS),
        *(x, weight),
    )
    scores = 300 * x
    assert_pair(
        mathematics.softmax,
        lambda grad: (mathematics.softmax_backward(grad, scores.softmax(-1)),),
        lambda scores: scores.softmax(-1),
        scores,
    )


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "width"),
    [(1, 1, 1, 1, 1), (1, 1, 4, 4, 3), (2, 3, 5, 5, 4), (2, 2, 3, 7, 8), (3, 4, 1, 6, 2)],
)
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_attention(
    batch: int, heads: int, queries: int, keys: int, width: int, scale: float
) -> None:
    q = normal(batch, heads, queries, width, scale=scale)
    k = normal(batch, heads, keys, width, scale=scale)
    v = normal(batch, heads, keys, width)
    core = ReferenceCore(dropout=0.0)
    backward = partial(mathematics.attention_backward, q=q, k=k, v=v)
    assert_pair(mathematics.attention, backward, lambda q, k, v: core(q, k, v, None), q, k, v)


def test_activations() -> None:
    x = torch.cat(
        [
            torch.linspace(-12, 12, 2401, dtype=torch.float64),
            torch.tensor([-1e3, -40.0, 40.0, 1e3]).double(),
        ]
    )
    assert_pair(mathematics.gelu, lambda grad: (grad * mathematics.gelu_derivative(x),), F.gelu, x)
    assert_pair(mathematics.silu, lambda grad: (grad * mathematics.silu_derivative(x),), F.silu, x)


@over_leading
@over_scales
def test_feed_forward_networks(leading: tuple[int, ...], scale: float) -> None:
    x = normal(*leading, 3, scale=scale)
    config = tiny_config(n_head=1, n_embd=3, mlp_width=7, mlp="gelu", bias=True)
    mlp, (w1, b1, w2, b2) = randomized(MLP(config), "c_fc", "c_proj")
    assert_equal(mathematics.feed_forward(x, w1, b1, w2, b2), mlp(x))
    assert_pair(
        mathematics.feed_forward,
        partial(mathematics.feed_forward_backward, x=x, w1=w1, b1=b1, w2=w2),
        lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2),
        *(x, w1, b1, w2, b2),
    )
    config = tiny_config(n_head=1, n_embd=3, mlp_width=7, mlp="swiglu")
    gated, (w_gate, w1, w2) = randomized(SwiGLU(config), "c_gate", "c_fc", "c_proj")
    assert_equal(mathematics.swiglu(x, w_gate, w1, w2), gated(x))
    assert_pair(
        mathematics.swiglu,
        partial(mathematics.swiglu_backward, x=x, w_gate=w_gate, w1=w1, w2=w2),
        lambda x, gate, w1, w2: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, w1), w2),
        *(x, w_gate, w1, w2),
    )


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 5), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_cross_entropy(shape: tuple[int, int, int], scale: float) -> None:
    logits = normal(*shape, scale=scale)
    targets = torch.randint(shape[-1], shape[:2])
    assert_pair(
        lambda logits: mathematics.cross_entropy(logits, targets),
        lambda grad: (grad * mathematics.cross_entropy_backward(logits, targets),),
        lambda logits: summed_cross_entropy(logits, targets) / targets.numel(),
        logits,
    )


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3, float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
def test_clip_by_global_norm(max_norm: float, scale: float) -> None:
    grads = [normal(4, 3, scale=scale), normal(5, scale=scale), normal(scale=scale)]
    parameters = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    nn.utils.clip_grad_norm_(parameters, max_norm)
    assert_equal(mathematics.clip_by_global_norm(grads, max_norm), [p.grad for p in parameters])


@pytest.mark.parametrize("weight_decay", [None, 0.0, 0.3])
@pytest.mark.parametrize(
    ("betas", "eps"), [((0.9, 0.999), 1e-8), ((0.0, 0.5), 1e-2), ((0.9, 0.99), 1e-12)]
)
def test_adam_over_several_steps(
    weight_decay: float | None, betas: tuple[float, float], eps: float
) -> None:
    theta = normal(4, 3)
    parameter = nn.Parameter(theta.clone())
    m = torch.zeros_like(theta)
    v = torch.zeros_like(theta)
    if weight_decay is None:
        optimizer: torch.optim.Optimizer = torch.optim.Adam([parameter], betas=betas, eps=eps)
    else:
        optimizer = torch.optim.AdamW([parameter], betas=betas, eps=eps, weight_decay=weight_decay)
    for t in range(1, 8):
        grad = normal(4, 3, scale=10.0 ** (3 - t))
        lr = 0.3 / t
        grad[0, 0] = 0.0
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = grad.clone()
        optimizer.step()
        theta = mathematics.decoupled_decay(theta, lr, weight_decay or 0.0)
        theta, m, v = mathematics.adam_update(theta, grad, m, v, t, lr, betas, eps)
        assert_equal(theta, parameter.detach())


@pytest.mark.parametrize(
    ("warmup", "decay", "max_steps"), [(0, None, 40), (1, None, 40), (10, 30, 40), (10, 5, 40)]
)
def test_warmup_cosine_is_the_schedule_of_training(
    warmup: int, decay: int | None, max_steps: int
) -> None:
    config = OptimConfig(learning_rate=2e-3, min_lr=3e-4, warmup_steps=warmup, decay_steps=decay)
    for step in range(max_steps + 10):
        rate = mathematics.warmup_cosine(step, warmup, decay or max_steps, 2e-3, 3e-4)
        assert rate == pytest.approx(learning_rate(step, config, max_steps), rel=1e-12)


def test_worked_numbers_are_those_of_sampling() -> None:
    for logits, params, digits in (
        ([1, 2, 3], {"temperature": 0.5}, 3),
        ([1, 5, 3, 2, 4], {"temperature": 1.0, "top_k": 3}, 3),
        ([0, 1, 2, 3, 4], {"temperature": 1.0}, 4),
    ):
        x = torch.tensor(logits, dtype=torch.float64)
        probabilities = next_token_probabilities(x, SamplingParams.model_validate(params)).tolist()
        assert f"| [{', '.join(f'{p:.{digits}f}' if p else '0' for p in probabilities)}] |" in PAGE
    nucleus = next_token_probabilities(
        torch.arange(5.0), SamplingParams(temperature=1.0, top_p=0.9)
    )
    assert f"the smallest set that reaches p | {nucleus.count_nonzero()} tokens |" in PAGE
    assert "the tokens whose sum is at most 0.9 | 2 tokens |" in PAGE
    sums = torch.arange(5, dtype=torch.float64).softmax(-1).flip(-1).cumsum(-1).tolist()
    assert f"| [{', '.join(f'{value:.4f}' for value in sums)}] |" in PAGE
