"""Attention, norms and positions.

A test of `run_with_cache` has the formulas of the whole model.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from gpt.model.attention import CORES, Attention, AutoCore, ReferenceCore, SDPACore, causal_mask
from gpt.model.layers import build_norm
from gpt.model.positions import Rotary, SinusoidalPositions, build_position, rotate
from tiny import tiny_config

CPU = torch.device("cpu")
RAGGED = torch.tensor(
    [[True, True, True, False, True, True], [False, False, True, True, True, True]]
)
"""Which of six keys exist, for two rows."""


def inputs(kv_heads: int = 4, queries: int = 6, keys: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (4, queries), (kv_heads, keys), (kv_heads, keys)
    q, k, v = (torch.randn(2, *shape, 8, requires_grad=True) for shape in shapes)
    return q, k, v


def mask_of(kind: str, queries: int, keys: int) -> Tensor | None:
    causal = causal_mask(queries, keys, CPU)
    itself = torch.eye(keys, dtype=torch.bool)[-queries:]
    return {
        "none": None,
        "causal": causal,
        "ragged": causal & (RAGGED[:, None, None, :keys] | itself),
        "everything": torch.ones_like(causal),
    }[kind]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "causal", "ragged", "everything"])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 6), (3, 6), (1, 1)])
def test_cores_agree_on_values_and_gradients(
    queries: int, keys: int, mask: str, kv_heads: int
) -> None:
    tensors = inputs(kv_heads, queries, keys)
    allowed = mask_of(mask, queries, keys)
    upstream = torch.randn(2, 4, queries, 8)
    expected, actual = (core(0.0)(*tensors, allowed) for core in (ReferenceCore, SDPACore))
    gradients = [torch.autograd.grad(result, tensors, upstream) for result in (actual, expected)]
    torch.testing.assert_close((actual, gradients[0]), (expected, gradients[1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "grad", "compiling", "used"),
    [
        (torch.float32, True, False, "sdpa"),
        (torch.float32, True, True, "reference"),
        (torch.bfloat16, True, False, "reference"),
        (torch.bfloat16, False, False, "sdpa"),
        (torch.float32, False, True, "sdpa"),
    ],
)
def test_auto_takes_the_reference_only_to_train_faster_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, grad: bool, compiling: bool, used: str
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    auto = AutoCore(0.0)
    ran = []
    for name, core in auto.named_children():
        core.register_forward_hook(lambda *_, name=name: ran.append(name))
    with torch.set_grad_enabled(grad):
        auto(*(tensor.to(dtype) for tensor in inputs()), None)
    assert ran == [used]


def test_causal_mask_is_aligned_at_the_end() -> None:
    assert causal_mask(2, 5, CPU).tolist() == [[[[True] * 4 + [False], [True] * 5]]]


@pytest.mark.parametrize("core", CORES.values())
def test_attention_dropout_acts_in_training_only(core: type[nn.Module]) -> None:
    dropping, (q, k, v) = core(0.5), (x.detach() for x in inputs())
    expected = ReferenceCore(0.0)(q, k, v, None)
    torch.testing.assert_close(dropping.eval()(q, k, v, None), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(dropping.train()(q, k, v, None), expected, atol=1e-3)


def test_query_and_key_norms_see_each_head_alone_and_no_values() -> None:
    attention = Attention(tiny_config(qk_norm=True, n_kv_head=2))
    seen: list[Tensor] = []
    attention.core.register_forward_pre_hook(lambda _, args: seen.extend(args[:3]))
    attention(5 * torch.randn(2, 6, 32), None, None)
    q, k, v = seen
    assert (q.shape, k.shape, v.shape) == ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    for x in (q, k):
        torch.testing.assert_close(
            x.square().mean(dim=-1), torch.ones(x.shape[:-1]), rtol=0, atol=1e-3
        )
    assert v.square().mean(dim=-1).std() > 0.1


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (100.0, 1.0), (0.0, 1e-4), (4.0, 0.0)])
@pytest.mark.parametrize(
    ("norm", "bias"), [("layernorm", True), ("layernorm", False), ("rmsnorm", True)]
)
def test_norm_computes_its_formula(mean: float, deviation: float, norm: str, bias: bool) -> None:
    eps = 1e-2
    x = mean + deviation * torch.randn(2, 3, 16, dtype=torch.float64)
    built = build_norm(tiny_config(n_embd=16, norm=norm, bias=bias, norm_eps=eps))
    names = ["weight", "bias"] if bias and norm == "layernorm" else ["weight"]
    assert [name for name, _ in built.named_parameters()] == names
    for parameter in built.parameters():
        nn.init.normal_(parameter)
    built = built.double()
    centered = x - x.mean(dim=-1, keepdim=True) if norm == "layernorm" else x
    expected = built.weight * centered / (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    expected = expected if len(names) == 1 else expected + built.bias
    torch.testing.assert_close(built(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(built.float()(x.float()).double(), expected, rtol=0, atol=1e-4)


WIDTHS_AND_BASES = [(2, 10000.0), (8, 10000.0), (32, 500.0)]


@pytest.mark.parametrize(("width", "theta"), WIDTHS_AND_BASES)
def test_sinusoidal_table_holds_the_formula(width: int, theta: float) -> None:
    table = SinusoidalPositions(50, width, theta).table
    assert table.shape == (50, width)
    for position in range(50):
        for pair in range(width // 2):
            angle = position / theta ** (2 * pair / width)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=3e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=3e-6)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_each_token_gets_the_row_of_its_position(position: str) -> None:
    added = build_position(tiny_config(position=position))
    x = torch.randn(2, 3, 32)
    (rows,) = (*added.parameters(), *added.buffers())
    assert rows.shape == (16, 32)
    torch.nn.init.normal_(rows)
    assert torch.equal(
        added(x, torch.tensor([4, 0, 15])), x + torch.stack((rows[4], rows[0], rows[15]))
    )
    per_row = added(x, torch.tensor([[0, 1, 2], [7, 7, 5]]))
    assert torch.equal(per_row, x + torch.stack((rows[:3], rows[[7, 7, 5]])))


@pytest.mark.parametrize(("width", "theta"), WIDTHS_AND_BASES)
@pytest.mark.parametrize(
    "positions", [torch.arange(6), torch.tensor([[0, 1, 2, 3, 4, 5], [9, 0, 0, 47, 3, 2]])]
)
def test_rotary_multiplies_by_complex_numbers(width: int, theta: float, positions: Tensor) -> None:
    """Column i is the real and column i + D/2 the imaginary part, times e^(i angle)."""
    x = torch.randn(2, 4, 6, width)
    half = width // 2
    frequencies = torch.tensor(
        [theta ** (-2 * i / width) for i in range(half)], dtype=torch.float64
    )
    angles = positions.double().unsqueeze(-1) * frequencies  # (T, D/2) or (B, T, D/2)
    angles = angles.unsqueeze(1) if positions.dim() == 2 else angles
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.exp(1j * angles)
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    torch.testing.assert_close(
        rotate(x, Rotary(48, width, theta)(positions)), expected, rtol=0, atol=2e-5
    )
