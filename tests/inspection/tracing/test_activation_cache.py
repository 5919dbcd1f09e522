"""Captured activations against the formulas, computed from the weights alone."""

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.inspection.tracing.activation_cache import MEMORY_LIMIT, run_with_cache
from gpt.inspection.tracing.activation_names import Key, activations, capture_bytes
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import every_variant, some_ids, state_of
from tiny import sharp_model

EXACT = 1e-9


def by_hand(model: GPT, idx: Tensor) -> dict[str, Tensor]:
    """Every activation in float64, from the configuration and the weights."""
    c, weights, length = model.config, model.state_dict(), idx.size(1)
    found: dict[str, Tensor] = {}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(1))

    def norm(name: str, hook: str, x: Tensor) -> Tensor:
        centered = x if c.norm == "rmsnorm" else x - x.mean(-1, keepdim=True)
        scale = ((centered**2).mean(-1, keepdim=True) + c.norm_eps) ** 0.5
        scaled = centered / scale * weights[f"{name}.weight"]
        found[f"{hook}.hook_normalized"] = scaled + weights.get(f"{name}.bias", torch.zeros(1))
        return found[f"{hook}.hook_normalized"]

    x = found["hook_embed"] = torch.nn.functional.one_hot(idx, c.vocab_size).double() @ weights["wte.weight"]
    if c.position != "rope":
        vectors = weights["wpe.weight"] if c.position == "learned" else sines(c)
        found["hook_pos_embed"] = vectors[:length].expand_as(x)
        x = x + found["hook_pos_embed"]
    for layer in range(c.n_layer):
        module, hook = f"h.{layer}", f"blocks.{layer}"
        found[f"{hook}.hook_resid_pre"] = x
        normed = norm(f"{module}.ln_1", f"{hook}.ln1", x)
        q, k, v = (linear(f"{module}.attn.c_{part}", normed).unflatten(-1, (-1, c.head_dim)) for part in "qkv")
        found |= {f"{hook}.attn.hook_q": q, f"{hook}.attn.hook_k": k, f"{hook}.attn.hook_v": v}
        if c.qk_norm:
            q, k = (
                x / ((x**2).mean(-1, keepdim=True) + c.norm_eps) ** 0.5 * weights[f"{module}.attn.{part}_norm.weight"]
                for part, x in (("q", q), ("k", k))
            )
        if c.position == "rope":
            q, k = turned(q, c), turned(k, c)
        if c.position == "rope" or c.qk_norm:
            found |= {f"{hook}.attn.hook_rot_q": q, f"{hook}.attn.hook_rot_k": k}
        group = c.n_head // c.kv_heads
        scores = torch.stack(
            [q[:, :, head] @ k[:, :, head // group].mT / math.sqrt(c.head_dim) for head in range(c.n_head)], dim=1
        )
        scores = torch.where(torch.ones(length, length).tril() > 0, scores, -math.inf)
        pattern = scores.exp() / scores.exp().sum(-1, keepdim=True)
        z = torch.stack([pattern[:, head] @ v[:, :, head // group] for head in range(c.n_head)], dim=2)
        added = linear(f"{module}.attn.c_proj", z.flatten(2))
        found |= {f"{hook}.attn.hook_attn_scores": scores, f"{hook}.attn.hook_pattern": pattern}
        found |= {f"{hook}.attn.hook_z": z, f"{hook}.hook_attn_out": added}
        x = x + added
        normed = norm(f"{module}.ln_2", f"{hook}.ln2", x)
        if c.mlp == "swiglu":
            pre = linear(f"{module}.mlp.c_gate", normed)
            straight = found[f"{hook}.mlp.hook_pre_linear"] = linear(f"{module}.mlp.c_fc", normed)
            post = pre * pre.sigmoid() * straight
        else:
            pre = linear(f"{module}.mlp.c_fc", normed)
            post = activated(c.mlp, pre)
        added = linear(f"{module}.mlp.c_proj", post)
        found |= {f"{hook}.mlp.hook_pre": pre, f"{hook}.mlp.hook_post": post, f"{hook}.hook_mlp_out": added}
        x = found[f"{hook}.hook_resid_post"] = x + added
    found["logits"] = linear("lm_head", norm("ln_f", "ln_final", x))
    return found


def turned(x: Tensor, config: ModelConfig) -> Tensor:
    """Pairs (i, i + D/2) as complex numbers, turned; angles as exact as the model's float32 tables."""
    half = config.head_dim // 2
    angles = [[p / config.rope_theta ** (i / half) for i in range(half)] for p in range(x.size(1))]
    by = torch.tensor(angles, dtype=torch.float64)[:, None]
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.complex(by.cos().float(), by.sin().float())
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def sines(config: ModelConfig) -> Tensor:
    def angle(position: int, column: int) -> float:
        return position / config.rope_theta ** (column // 2 * 2 / config.n_embd)

    rows = [
        [(math.cos if column % 2 else math.sin)(angle(position, column)) for column in range(config.n_embd)]
        for position in range(config.block_size)
    ]
    return torch.tensor(rows).double()


def activated(name: str, x: Tensor) -> Tensor:
    match name:
        case "gelu":
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        case "gelu_tanh":
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "relu":
            return x * (x > 0)
        case _:
            return (x * (x > 0)) ** 2


@every_variant
def test_every_activation_is_what_the_formulas_give(variant: dict[str, object]) -> None:
    model, idx = sharp_model(**variant).double(), some_ids()
    logits, cache = run_with_cache(model, idx)
    expected = by_hand(model, idx)
    assert list(cache) == list(activations(model.config))
    assert set(cache) == set(expected)
    for name, tensor in cache.items():
        tolerance = 1e-5 if name == "logits" else EXACT  # logits are float32
        torch.testing.assert_close(tensor, expected[name].to(tensor), rtol=tolerance, atol=tolerance, msg=name)
    assert torch.equal(cache["logits"], logits)


@every_variant
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 16)])
def test_looking_changes_nothing_and_costs_what_was_predicted(
    variant: dict[str, object], batch: int, length: int
) -> None:
    model, idx = sharp_model(**variant), some_ids(batch, length)
    plain, before = model(idx), state_of(model)
    logits, cache = run_with_cache(model, idx)
    torch.testing.assert_close(logits, plain, rtol=1e-5, atol=1e-5)
    assert state_of(model) == before
    table = activations(model.config)
    assert {name: tuple(x.shape) for name, x in cache.items()} == {
        name: activation.shape(model.config, batch, length) for name, activation in table.items()
    }
    assert capture_bytes(model.config, table, batch, length, 4) == cache.nbytes
    again = run_with_cache(model, idx)[1]
    assert all(torch.equal(again[name], x) for name, x in cache.items())


@every_variant
def test_gradients_flow_through_what_was_captured(variant: dict[str, object]) -> None:
    """A small step along the gradient changes the loss by as much as the gradient says."""
    model, idx = sharp_model(**variant).double(), some_ids()
    inside = [f"blocks.0.attn.hook_{name}" for name in ("q", "k", "v", "pattern", "z")]
    names = ["hook_*embed", *inside, "blocks.0.hook_resid_*", "blocks.1.hook_attn_out", "ln_final.*"]
    logits, cache = run_with_cache(model, idx, names)
    captured = {name: x for name, x in cache.items() if x.requires_grad}  # a sinusoid does not
    gradients = torch.autograd.grad(logits.double().logsumexp(-1).sum(), list(captured.values()))
    for name, gradient in zip(captured, gradients, strict=True):
        assert gradient.norm() > 1e-3, name
        step = 1e-3 * gradient / gradient.norm()
        up, down = (
            run_with_cache(model, idx, [], {name: lambda x, move=move: x + move})[0].detach().double().logsumexp(-1)
            for move in (step, -step)
        )
        assert float((up - down).sum()) / 2e-3 == pytest.approx(float(gradient.norm()), rel=0.05), name


def test_the_callers_gradient_mode_is_kept() -> None:
    model = sharp_model()
    assert run_with_cache(model, some_ids())[1]["pattern", 0].requires_grad
    with torch.no_grad():
        assert not run_with_cache(model, some_ids())[1]["pattern", 0].requires_grad


def test_a_cache_reads_like_a_mapping() -> None:
    _, cache = run_with_cache(sharp_model(), some_ids(), ["blocks.*.attn.hook_pattern", "ln_final.*"])
    assert list(cache) == ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern", "ln_final.hook_normalized"]
    assert len(cache) == 3
    assert cache["pattern", 0] is cache["blocks.0.attn.hook_pattern"]
    assert cache["pattern", -1] is cache["blocks.1.attn.hook_pattern"]
    assert cache.axes(("pattern", 1)) == "B H T S"
    assert cache.axes("hook_embed") == "B T C"  # of what was not captured too
    assert ("pattern", 1) in cache
    assert ("pattern", -2) in cache
    for key in ("logits", ("pattern", 2), ("normalized", 0), "blocks.*"):
        assert key not in cache
        assert cache.get(key, 7) == 7
    assert dict(cache) == {name: cache[name] for name in cache}
    assert repr(cache) == f"ActivationCache(3 activations, {2 * 2 * 4 * 49 * 4 + 2 * 7 * 32 * 4:,} bytes)"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("logits", "logits was not captured; add it to names"),
        (("z", 0), "blocks.0.attn.hook_z was not captured"),
        (("zz", 0), "('zz', 0) means 0 activations; give the full name"),
        (("pattern", 2), "unknown activation blocks.2.attn.hook_pattern; did you mean"),
        (("pattern", -3), "unknown activation blocks.-1.attn.hook_pattern"),
        (("normalized", 0), "('normalized', 0) means 2 activations"),
        ("blocks.*.hook_zz", "unknown activation blocks.*.hook_zz"),
    ],
    ids=str,
)
def test_what_is_not_there_is_told(key: Key, words: str) -> None:
    _, cache = run_with_cache(sharp_model(), some_ids(), "blocks.0.attn.hook_pattern")
    with pytest.raises(InputError) as error:
        cache[key]
    assert isinstance(error.value, KeyError)
    assert words in str(error.value)
    assert str(error.value) == error.value.args[0]  # and not in quotation marks, as of a KeyError


@pytest.mark.parametrize(
    ("names", "limit", "words"),
    [
        (None, 1000, "more than the limit of 1,000; capture fewer names"),
        ("logits", 1287, "capturing 1 activations of (2, 7) ids takes 1,288 bytes"),
        ("logit", 10**9, "unknown activation"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_runs(
    names: str | Iterable[str] | None, limit: int, words: str
) -> None:
    model, calls = sharp_model(), []
    model.wte.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(InputError) as error:
        run_with_cache(model, some_ids(), names, memory_limit=limit)
    assert words in str(error.value)
    assert not calls
    assert run_with_cache(model, some_ids(), "logits", memory_limit=1288)[1].nbytes == 1288


def test_one_text_is_a_batch_of_one() -> None:
    model, idx = sharp_model(), some_ids()[0]
    expected = run_with_cache(model, idx[None])[0]
    assert run_with_cache(model, idx)[0].equal(expected)
    assert run_with_cache(model, idx.tolist())[0].equal(expected)


@pytest.mark.parametrize(
    ("shape", "words", "limit"),
    [
        *((shape, "batch, time", MEMORY_LIMIT) for shape in ((), (0,), (2, 0), (0, 5), (1, 2, 3))),
        ((1, 17), "17 tokens is longer than block_size 16", 1),  # not a matter of memory
        ((1, 3), "outside the vocabulary", MEMORY_LIMIT),
    ],
)
def test_ids_that_do_not_fit(shape: tuple[int, ...], words: str, limit: int) -> None:
    model = sharp_model()
    before = state_of(model)
    with pytest.raises(InputError, match=words):
        run_with_cache(model, torch.full(shape, 23), memory_limit=limit)
    assert state_of(model) == before
