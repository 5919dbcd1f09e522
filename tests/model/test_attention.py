import pytest
import torch
from torch import Tensor, nn

from gpt.model.attention import CORES, Attention, AutoCore, ReferenceCore, SDPACore, causal_mask
from tiny import tiny_config

CPU = torch.device("cpu")
HEADS = 4
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


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("core", [SDPACore, AutoCore])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("mask", ["none", "causal", "ragged", "everything"])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (1, 6), (3, 6), (1, 1)])
def test_the_reference_and_torchs_own_kernel_agree_on_values_and_gradients(
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


def test_causal_mask_is_aligned_at_the_end() -> None:
    assert causal_mask(2, 5, CPU).tolist() == [[[[True] * 4 + [False], [True] * 5]]]
    assert causal_mask(3, 3, CPU)[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]


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
