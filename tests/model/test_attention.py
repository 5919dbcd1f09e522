import math

import pytest
import torch
from torch import Tensor, nn

from gpt.model.attention import CORES, Attention, AutoCore, ReferenceCore, SDPACore, causal_mask
from tiny import tiny_config

CPU = torch.device("cpu")
HEADS = 4
LENGTHS = [(6, 6), (1, 6), (3, 6), (1, 1)]  # queries, keys
RAGGED = torch.tensor([[True, True, True, False, True, True], [False, False, True, True, True, True]])
"""Which of six keys exist, for two rows."""

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(kv_heads: int, queries: int, keys: int) -> Inputs:
    return (
        torch.randn(2, HEADS, queries, 8, requires_grad=True),
        torch.randn(2, kv_heads, keys, 8, requires_grad=True),
        torch.randn(2, kv_heads, keys, 8, requires_grad=True),
    )


def masks(queries: int, keys: int) -> dict[str, Tensor | None]:
    causal = causal_mask(queries, keys, CPU)
    itself = torch.eye(keys, dtype=torch.bool)[-queries:]
    return {
        "none": None,
        "causal": causal,
        "ragged": causal & (RAGGED[:, None, None, :keys] | itself),
        "everything": torch.ones(1, 1, queries, keys, dtype=torch.bool),
    }


CASES = [
    pytest.param(queries, keys, name, id=f"{queries}x{keys}-{name}")
    for queries, keys in LENGTHS
    for name in masks(queries, keys)
]


def attention_by_loops(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """One query and one head at a time, over the keys it may see, in float64."""
    batch, heads, queries, width = q.shape
    out = torch.zeros(batch, heads, queries, v.size(-1), dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            kv = h * k.size(1) // heads
            for t in range(queries):
                last = k.size(2) - queries + t
                seen = [
                    s
                    for s in range(k.size(2))
                    if (s <= last if mask is None else mask.expand(batch, 1, -1, -1)[b, 0, t, s])
                ]
                scores = [float(q[b, h, t].double() @ k[b, kv, s].double()) / math.sqrt(width) for s in seen]
                weights = [math.exp(score - max(scores)) for score in scores]
                for s, weight in zip(seen, weights, strict=True):
                    out[b, h, t] += weight / sum(weights) * v[b, kv, s].double()
    return out


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys", "mask"), CASES)
def test_the_reference_is_attention_by_loops(queries: int, keys: int, mask: str, kv_heads: int) -> None:
    q, k, v = (x.detach() for x in inputs(kv_heads, queries, keys))
    allowed = masks(queries, keys)[mask]
    actual = ReferenceCore(0.0)(q, k, v, allowed)
    torch.testing.assert_close(actual.double(), attention_by_loops(q, k, v, allowed), rtol=0, atol=1e-5)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("core", [SDPACore, AutoCore])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys", "mask"), CASES)
def test_every_core_agrees_with_the_reference(
    queries: int, keys: int, mask: str, kv_heads: int, core: type[nn.Module], grad: bool
) -> None:
    tensors, allowed = inputs(kv_heads, queries, keys), masks(queries, keys)[mask]
    with torch.set_grad_enabled(grad):
        expected, actual = ReferenceCore(0.0)(*tensors, allowed), core(0.0)(*tensors, allowed)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    if grad:
        upstream = torch.randn_like(expected)
        pairs = zip(
            torch.autograd.grad(actual, tensors, upstream),
            torch.autograd.grad(expected, tensors, upstream),
            strict=True,
        )
        for gradient, expected_gradient in pairs:
            torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-5)


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
def test_auto_writes_attention_out_only_where_training_on_a_cpu_is_quicker_so(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, grad: bool, compiling: bool, used: str
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    auto, ran = AutoCore(0.0), []
    for name, core in auto.named_children():
        core.register_forward_hook(lambda *_, name=name: ran.append(name))
    with torch.set_grad_enabled(grad):
        auto(*(tensor.to(dtype) for tensor in inputs(HEADS, 6, 6)), None)
    assert ran == [used]


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_grouped_attention_is_multi_head_attention_with_repeated_weights(kv_heads: int) -> None:
    grouped = Attention(tiny_config(n_kv_head=kv_heads, bias=True))
    full = Attention(tiny_config(bias=True))
    weights = grouped.state_dict()
    for name in ("c_k.weight", "c_k.bias", "c_v.weight", "c_v.bias"):
        weights[name] = weights[name].unflatten(0, (kv_heads, 8)).repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)
    full.load_state_dict(weights)
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(grouped(x, None, None), full(x, None, None), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("queries", "keys", "rows"),
    [
        (3, 3, ["100", "110", "111"]),
        (2, 5, ["11110", "11111"]),
        (1, 4, ["1111"]),
        (1, 1, ["1"]),
    ],
)
def test_causal_mask_is_aligned_at_the_end(queries: int, keys: int, rows: list[str]) -> None:
    mask = causal_mask(queries, keys, CPU)
    assert mask.dtype == torch.bool
    assert mask.shape == (1, 1, queries, keys)
    assert mask[0, 0].tolist() == [[digit == "1" for digit in row] for row in rows]


@pytest.mark.parametrize("core", CORES.values())
def test_attention_dropout_acts_in_training_only(core: type[nn.Module]) -> None:
    dropping, (q, k, v) = core(0.5), (x.detach() for x in inputs(HEADS, 6, 6))
    expected = ReferenceCore(0.0)(q, k, v, None)
    torch.testing.assert_close(dropping.eval()(q, k, v, None), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(dropping.train()(q, k, v, None), expected, atol=1e-3)


@pytest.mark.parametrize("rotated", [True, False])
def test_query_and_key_norms_make_the_scale_of_their_weights_irrelevant(rotated: bool) -> None:
    x = torch.randn(2, 6, 32)
    rotation = (torch.randn(6, 8), torch.randn(6, 8)) if rotated else None
    for qk_norm in (True, False):
        attention = Attention(tiny_config(qk_norm=qk_norm, position="rope" if rotated else "learned", norm_eps=1e-12))
        before = attention(x, rotation, None)
        with torch.no_grad():
            attention.c_q.weight *= 7
            attention.c_k.weight *= 3
        assert torch.allclose(attention(x, rotation, None), before, rtol=0, atol=1e-5) is qk_norm


def test_query_and_key_norms_see_each_head_on_its_own_and_values_are_left_alone() -> None:
    attention = Attention(tiny_config(qk_norm=True, n_kv_head=2))
    seen: list[Tensor] = []
    attention.core.register_forward_pre_hook(lambda _, args: seen.extend(args[:3]))
    attention(5 * torch.randn(2, 6, 32), None, None)
    q, k, v = seen
    assert (q.shape, k.shape, v.shape) == ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    for x in (q, k):
        torch.testing.assert_close(x.square().mean(dim=-1), torch.ones(x.shape[:-1]), rtol=0, atol=1e-3)
    assert v.square().mean(dim=-1).std() > 0.1


class Shelf:
    """A cache of one layer, by concatenation."""

    def __init__(self) -> None:
        self.k = self.v = torch.empty(2, 2, 0, 8)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k, self.v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        return self.k, self.v


@pytest.mark.parametrize("pieces", [[6], [4, 2], [1, 1, 1, 1, 1, 1], [3, 1, 2]])
@pytest.mark.parametrize("core", CORES)
def test_attention_with_cached_keys_and_values_is_attention_at_once(core: str, pieces: list[int]) -> None:
    attention, x, shelf = Attention(tiny_config(n_kv_head=2, attention=core)), torch.randn(2, 6, 32), Shelf()
    in_pieces = [attention(piece, None, None, shelf) for piece in x.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(in_pieces, dim=1), attention(x, None, None), rtol=0, atol=1e-5)
