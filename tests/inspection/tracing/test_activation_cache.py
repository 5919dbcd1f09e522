"""Captured activations against the formulas, computed from the weights alone."""

import math

import pytest
import torch
from torch import Tensor

from gpt.config import ModelConfig
from gpt.extras.inspection.tracing.activation_cache import run_with_cache
from gpt.extras.inspection.tracing.activation_names import Key, activations, capture_bytes
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import every_variant, some_ids, state_of
from tiny import sharp_model

EXACT = 1e-9
ACTIVATED = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: x * (x > 0),
    "relu2": lambda x: (x * (x > 0)) ** 2,
}


def by_hand(model: GPT, idx: Tensor) -> dict[str, Tensor]:
    """Every activation in float64, from the configuration and the weights."""
    c = model.config
    weights = model.state_dict()
    length = idx.size(1)
    found: dict[str, Tensor] = {}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(1))

    def norm(name: str, hook: str, x: Tensor) -> Tensor:
        centered = x if c.norm == "rmsnorm" else x - x.mean(-1, keepdim=True)
        scale = ((centered**2).mean(-1, keepdim=True) + c.norm_eps) ** 0.5
        scaled = centered / scale * weights[f"{name}.weight"]
        found[f"{hook}.hook_normalized"] = scaled + weights.get(f"{name}.bias", torch.zeros(1))
        return found[f"{hook}.hook_normalized"]

    x = found["hook_embed"] = (
        torch.nn.functional.one_hot(idx, c.vocab_size).double() @ weights["wte.weight"]
    )
    if c.position != "rope":
        vectors = weights["wpe.weight"] if c.position == "learned" else sines(c)
        found["hook_pos_embed"] = vectors[:length].expand_as(x)
        x = x + found["hook_pos_embed"]
    for layer in range(c.n_layer):
        module = f"h.{layer}"
        hook = f"blocks.{layer}"
        found[f"{hook}.hook_resid_pre"] = x
        normed = norm(f"{module}.ln_1", f"{hook}.ln1", x)
        q, k, v = (
            linear(f"{module}.attn.c_{part}", normed).unflatten(-1, (-1, c.head_dim))
            for part in "qkv"
        )
        found |= {f"{hook}.attn.hook_q": q, f"{hook}.attn.hook_k": k, f"{hook}.attn.hook_v": v}
        if c.qk_norm:
            q, k = (
                x
                / ((x**2).mean(-1, keepdim=True) + c.norm_eps) ** 0.5
                * weights[f"{module}.attn.{part}_norm.weight"]
                for part, x in (("q", q), ("k", k))
            )
        if c.position == "rope":
            q, k = turned(q, c), turned(k, c)
        if c.position == "rope" or c.qk_norm:
            found |= {f"{hook}.attn.hook_rot_q": q, f"{hook}.attn.hook_rot_k": k}
        group = c.n_head // c.kv_heads
        scores = torch.stack(
            [
                q[:, :, head] @ k[:, :, head // group].mT / math.sqrt(c.head_dim)
                for head in range(c.n_head)
            ],
            dim=1,
        )
        scores = torch.where(torch.ones(length, length).tril() > 0, scores, -math.inf)
        pattern = scores.exp() / scores.exp().sum(-1, keepdim=True)
        z = torch.stack(
            [pattern[:, head] @ v[:, :, head // group] for head in range(c.n_head)], dim=2
        )
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
            post = ACTIVATED[c.mlp](pre)
        added = linear(f"{module}.mlp.c_proj", post)
        found |= {
            f"{hook}.mlp.hook_pre": pre,
            f"{hook}.mlp.hook_post": post,
            f"{hook}.hook_mlp_out": added,
        }
        x = found[f"{hook}.hook_resid_post"] = x + added
    found["logits"] = linear("lm_head", norm("ln_f", "ln_final", x))
    return found


def turned(x: Tensor, config: ModelConfig) -> Tensor:
    """Pairs (i, i + D/2) as complex numbers, turned.

    Angles as exact as the model's float32 tables.
    """
    half = config.head_dim // 2
    by = torch.arange(x.size(1)).double()[:, None, None] / config.rope_theta ** (
        torch.arange(half).double() / half
    )
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.complex(
        by.cos().float(), by.sin().float()
    )
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def sines(config: ModelConfig) -> Tensor:
    columns = torch.arange(config.n_embd)
    positions = torch.arange(config.block_size).double()[:, None]
    angles = positions / config.rope_theta ** (columns // 2 * 2 / config.n_embd).double()
    return torch.where(columns % 2 == 1, angles.cos(), angles.sin()).float().double()


@every_variant
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 7), (3, 16)])
def test_captured_activations_follow_the_formulas(
    variant: dict[str, object], batch: int, length: int
) -> None:
    """In order, of the sizes that were predicted.

    The model stays as it was, and computes the same.
    """
    model = sharp_model(**variant).double()
    idx = some_ids(batch, length)
    plain = model(idx)
    before = state_of(model)
    logits, cache = run_with_cache(model, idx)
    assert state_of(model) == before
    expected = by_hand(model, idx)
    table = activations(model.config)
    assert list(cache) == list(table)
    assert set(cache) == set(expected)
    for name, tensor in cache.items():
        tolerance = 1e-5 if name == "logits" else EXACT  # logits are float32
        torch.testing.assert_close(
            tensor, expected[name].to(tensor), rtol=tolerance, atol=tolerance, msg=name
        )
        assert tensor.shape == table[name].shape(model.config, batch, length)
    assert torch.equal(cache["logits"], logits)
    torch.testing.assert_close(logits, plain, rtol=1e-5, atol=1e-5)
    assert capture_bytes(model.config, table, batch, length, 8) == cache.nbytes


@every_variant
def test_gradient_of_an_activation_predicts_the_loss_of_an_edit(variant: dict[str, object]) -> None:
    model = sharp_model(**variant).double()
    idx = some_ids()
    logits, cache = run_with_cache(model, idx)
    captured = {name: x for name, x in cache.items() if x.requires_grad}  # a sinusoid does not
    gradients = torch.autograd.grad(logits.double().logsumexp(-1).sum(), list(captured.values()))
    for name, gradient in zip(captured, gradients, strict=True):
        assert gradient.norm() > 1e-3, name
        step = 1e-3 * gradient / gradient.norm()
        up, down = (
            run_with_cache(model, idx, [], {name: lambda x, move=move: x + move})[0]
            .detach()
            .double()
            .logsumexp(-1)
            for move in (step, -step)
        )
        assert float((up - down).sum()) / 2e-3 == pytest.approx(float(gradient.norm()), rel=0.05), (
            name
        )
    with torch.no_grad():  # the caller's mode is kept
        assert not run_with_cache(model, idx)[1]["pattern", 0].requires_grad


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("logits", "logits was not captured; add it to names"),
        (("zz", 0), "('zz', 0) means 0 activations; give the full name"),
        (("pattern", 2), "there is no layer 2; the model has 2 layers, 0 to 1"),
        (("z", -3), "there is no layer -3; the model has 2 layers, 0 to 1"),
        (
            "blocks.9.attn.hook_z",
            "unknown activation blocks.9.attn.hook_z; the model has 2 layers, 0 to 1",
        ),
        (
            "blocks.1.attn.hook_y",
            "unknown activation blocks.1.attn.hook_y; did you mean blocks.1.attn.hook_",
        ),
        (("normalized", 0), "('normalized', 0) means 2 activations"),
        ("blocks.*.hook_zz", "unknown activation blocks.*.hook_zz"),
    ],
    ids=str,
)
def test_cache_refuses_a_key_that_it_lacks(key: Key, words: str) -> None:
    _, cache = run_with_cache(sharp_model(), some_ids(), "blocks.0.attn.hook_pattern")
    for read in (cache.__getitem__, cache.axes) if key != "logits" else (cache.__getitem__,):
        with pytest.raises(InputError) as error:
            read(key)
        assert isinstance(error.value, KeyError)
        assert words in str(error.value)
        # A plain KeyError would have its message in quotation marks.
        assert str(error.value) == error.value.args[0]


def test_capture_beyond_the_memory_limit_is_refused_unrun() -> None:
    model = sharp_model()
    calls = []
    model.wte.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(
        InputError, match=r"takes [\d,]+ bytes, more than the limit of 1,000; capture fewer names"
    ):
        run_with_cache(model, some_ids(), memory_limit=1000)
    with pytest.raises(
        InputError, match=r"capturing 1 activations of \(2, 7\) ids takes 1,288 bytes"
    ):
        run_with_cache(model, some_ids(), "logits", memory_limit=1287)
    assert not calls
    assert run_with_cache(model, some_ids(), "logits", memory_limit=1288)[1].nbytes == 1288
