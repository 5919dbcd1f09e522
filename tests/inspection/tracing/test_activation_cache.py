"""Captured activations against the formulas, computed from the weights alone, and against Hugging Face."""

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from gpt.config import ModelConfig
from gpt.errors import InputError
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.activation_names import Key, activations, capture_bytes
from gpt.model import GPT
from inspection.variants import VARIANTS, every_variant, some_ids, state_of
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
        found[f"{hook}.hook_scale"] = ((centered**2).mean(-1, keepdim=True) + c.norm_eps) ** 0.5
        scaled = centered / found[f"{hook}.hook_scale"] * weights[f"{name}.weight"]
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
            q = norm_heads(q, weights[f"{module}.attn.q_norm.weight"], c.norm_eps)
            k = norm_heads(k, weights[f"{module}.attn.k_norm.weight"], c.norm_eps)
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
        x = found[f"{hook}.hook_resid_mid"] = x + added
        normed = norm(f"{module}.ln_2", f"{hook}.ln2", x)
        past = normed
        for weight in weights.get(f"{module}.mlp_conv.weight", torch.zeros(32, 1, 0))[:, 0].T:
            normed = normed + past * weight
            past = torch.cat((torch.zeros_like(past[:, :1]), past[:, :-1]), dim=1)
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
    logits = linear("lm_head", norm("ln_f", "ln_final", x))
    found["logits"] = logits if c.logit_softcap is None else c.logit_softcap * (logits / c.logit_softcap).tanh()
    return found


def norm_heads(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / ((x**2).mean(-1, keepdim=True) + eps) ** 0.5 * weight


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
@pytest.mark.parametrize(("batch", "length"), [(2, 7), (1, 1), (3, 16)])
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
def test_the_stream_is_the_sum_of_what_is_added_to_it(variant: dict[str, object]) -> None:
    _, cache = run_with_cache(sharp_model(**variant), some_ids())
    start = cache["hook_embed"] + cache["hook_pos_embed"] if "hook_pos_embed" in cache else cache["hook_embed"]
    assert torch.equal(start, cache["resid_pre", 0])
    for layer in (0, 1):
        assert torch.equal(cache["resid_pre", layer] + cache["attn_out", layer], cache["resid_mid", layer])
        assert torch.equal(cache["resid_mid", layer] + cache["mlp_out", layer], cache["resid_post", layer])
    assert torch.equal(cache["resid_post", 0], cache["resid_pre", 1])


@every_variant
def test_weights_are_distributions_over_the_past(variant: dict[str, object]) -> None:
    _, cache = run_with_cache(sharp_model(**variant), some_ids(), "blocks.*.attn.hook_pattern")
    for pattern in cache.values():
        torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4, 7), rtol=0, atol=1e-6)
        assert (pattern.triu(1) == 0).all()
        assert pattern.std() > 0.1  # far from uniform, so that the comparisons mean something


def copied(theirs: torch.nn.Module, weights: dict[str, Tensor]) -> torch.nn.Module:
    """Their model with our weights, every one of them."""
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert not missing.missing_keys
    return theirs.eval()


def gpt2_of(model: GPT) -> torch.nn.Module:
    c, own = model.config, model.state_dict()
    theirs = GPT2LMHeadModel(
        GPT2Config(
            n_layer=c.n_layer, n_head=c.n_head, n_embd=c.n_embd, n_positions=c.block_size, vocab_size=c.vocab_size,
            tie_word_embeddings=False, attn_implementation="eager",
        )
    )  # fmt: skip
    weights = {"lm_head.weight": own["lm_head.weight"], "transformer.wpe.weight": own["wpe.weight"]}
    weights |= {f"transformer.{name}": own[name] for name in ("wte.weight", "ln_f.weight", "ln_f.bias")}
    for layer in range(c.n_layer):
        for kind in ("weight", "bias"):
            parts = [own[f"h.{layer}.attn.c_{part}.{kind}"].t() for part in "qkv"]  # theirs are (in, out)
            weights[f"transformer.h.{layer}.attn.c_attn.{kind}"] = torch.cat(parts, dim=-1)
            for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                weights[f"transformer.h.{layer}.{name}.{kind}"] = own[f"h.{layer}.{name}.{kind}"].t()
            for name in ("ln_1", "ln_2"):
                weights[f"transformer.h.{layer}.{name}.{kind}"] = own[f"h.{layer}.{name}.{kind}"]
    return copied(theirs, weights)


def llama_of(model: GPT) -> torch.nn.Module:
    c, own = model.config, model.state_dict()
    theirs = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, num_key_value_heads=c.kv_heads,
            hidden_size=c.n_embd, intermediate_size=c.mlp_hidden, vocab_size=c.vocab_size,
            max_position_embeddings=c.block_size, rms_norm_eps=c.norm_eps, tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )  # fmt: skip
    names = {
        "self_attn.q_proj": "attn.c_q", "self_attn.k_proj": "attn.c_k", "self_attn.v_proj": "attn.c_v",
        "self_attn.o_proj": "attn.c_proj", "mlp.gate_proj": "mlp.c_gate", "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    }  # fmt: skip
    weights = {
        f"model.layers.{layer}.{their_name}.weight": own[f"h.{layer}.{name}.weight"]
        for layer in range(c.n_layer)
        for their_name, name in names.items()
    }
    weights |= {"model.embed_tokens.weight": own["wte.weight"], "model.norm.weight": own["ln_f.weight"]}
    return copied(theirs, weights | {"lm_head.weight": own["lm_head.weight"]})


@pytest.mark.parametrize(("variant", "build"), [("gpt2", gpt2_of), ("llama", llama_of)], ids=["gpt2", "llama"])
def test_streams_and_weights_are_those_of_transformers(variant: str, build: object) -> None:
    model, idx = sharp_model(**VARIANTS[variant]), some_ids()
    logits, cache = run_with_cache(model, idx)
    assert callable(build)
    with torch.no_grad():
        theirs = build(model)(idx, output_attentions=True, output_hidden_states=True)

    def assert_near(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-4)

    assert_near(logits, theirs.logits)
    assert_near(cache["resid_pre", 0], theirs.hidden_states[0])
    assert_near(cache["resid_post", 0], theirs.hidden_states[1])
    assert_near(cache["ln_final"], theirs.hidden_states[2])  # theirs is normed
    for layer in (0, 1):
        assert_near(cache["pattern", layer], theirs.attentions[layer])


def test_gradients_flow_through_position_vectors() -> None:
    logits, cache = run_with_cache(sharp_model(), some_ids(), "hook_pos_embed")
    (gradient,) = torch.autograd.grad(logits.sum(), [cache["hook_pos_embed"]])
    assert gradient.norm() > 1e-3


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 5), (1, 2, 3)])
def test_ids_that_are_no_batch_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="batch, time"):
        run_with_cache(sharp_model(), torch.zeros(shape, dtype=torch.long))


@every_variant
@pytest.mark.parametrize(
    "name",
    [
        "hook_embed",
        *(f"blocks.0.attn.hook_{name}" for name in ("q", "k", "v", "pattern", "z")),
        "blocks.0.hook_resid_mid",
        "blocks.1.hook_attn_out",
        "blocks.0.hook_resid_post",
        "ln_final",
    ],
)
def test_gradients_flow_through_what_was_captured(variant: dict[str, object], name: str) -> None:
    """A small step along the gradient changes the loss by as much as the gradient says."""
    model, idx = sharp_model(**variant).double(), some_ids()
    logits, cache = run_with_cache(model, idx, name)
    (gradient,) = torch.autograd.grad(logits.double().logsumexp(-1).sum(), [cache[name]])
    assert gradient.norm() > 1e-3
    step = 1e-3 * gradient / gradient.norm()
    up, down = (
        run_with_cache(model, idx, [], {name: lambda x, move=move: x + move})[0].detach().double().logsumexp(-1).sum()
        for move in (step, -step)
    )
    assert float(up - down) / 2e-3 == pytest.approx(float(gradient.norm()), rel=0.05)


def test_the_callers_gradient_mode_is_kept() -> None:
    model = sharp_model()
    assert run_with_cache(model, some_ids())[1]["pattern", 0].requires_grad
    with torch.no_grad():
        assert not run_with_cache(model, some_ids())[1]["pattern", 0].requires_grad


def test_a_cache_reads_like_a_mapping() -> None:
    _, cache = run_with_cache(sharp_model(), some_ids(), ["blocks.*.attn.hook_pattern", "ln_final"])
    assert list(cache) == ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern", "ln_final.hook_normalized"]
    assert len(cache) == 3
    assert cache["pattern", 0] is cache["blocks.0.attn.hook_pattern"]
    assert cache["ln_final"] is cache["ln_final.hook_normalized"]
    assert cache["pattern", -1] is cache["blocks.1.attn.hook_pattern"]
    assert cache.axes(("pattern", 1)) == "B H T S"
    assert cache.axes("embed") == "B T C"  # of what was not captured too
    assert ("pattern", 1) in cache
    assert ("pattern", -2) in cache
    for key in ("logits", 3, ("pattern", 2), ("normalized", 0), "blocks.*", None):
        assert key not in cache
        assert cache.get(key, 7) == 7
    assert cache.get("ln_final") is cache["ln_final"]
    assert dict(cache) == {name: cache[name] for name in cache}
    assert repr(cache) == f"ActivationCache(3 activations, {2 * 2 * 4 * 49 * 4 + 2 * 7 * 32 * 4:,} bytes)"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("logits", "logits was not captured; add it to names"),
        (("z", 0), "blocks.0.attn.hook_z was not captured"),
        (("zz", 0), "unknown activation blocks.0.zz"),
        (("pattern", 2), "unknown activation blocks.2.attn.hook_pattern; did you mean"),
        (("pattern", -3), "unknown activation blocks.-1.attn.hook_pattern"),
        (("normalized", 0), "('normalized', 0) means 2 activations"),
        ("ln_finale", "did you mean ln_final"),
        ("blocks.*.hook_zz", "unknown activation blocks.*.hook_zz"),
        (
            "blocks.*.attn.hook_pattern",
            "blocks.*.attn.hook_pattern is a pattern, and a key is one name, such as blocks.0.attn.hook_pattern",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [InputError, KeyError])
def test_what_is_not_there_is_told(key: Key, words: str, kind: type[Exception]) -> None:
    _, cache = run_with_cache(sharp_model(), some_ids(), "blocks.0.attn.hook_pattern")
    with pytest.raises(kind) as error:
        cache[key]
    assert words in str(error.value)
    assert str(error.value) == error.value.args[0]  # and not in quotation marks, as of a KeyError


@pytest.mark.parametrize("key", ["zz", ("normalized", 0), "blocks.*.attn.hook_pattern"], ids=str)
def test_axes_of_no_activation(key: Key) -> None:
    _, cache = run_with_cache(sharp_model(), some_ids(), [])
    with pytest.raises(InputError):
        cache.axes(key)


def test_a_text_longer_than_the_window_is_not_a_matter_of_memory() -> None:
    with pytest.raises(InputError, match="17 tokens is longer than block_size 16"):
        run_with_cache(sharp_model(), torch.zeros(1, 17, dtype=torch.long), memory_limit=1)


@pytest.mark.parametrize(
    ("names", "limit", "words"),
    [
        (None, 1000, "more than the limit of 1,000; capture fewer names"),
        ("logits", 2 * 7 * 23 * 4 - 1, "capturing 1 activations of (2, 7) ids takes 1,288 bytes"),
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


def test_one_text_is_a_batch_of_one() -> None:
    model, idx = sharp_model(), some_ids()[0]
    expected = run_with_cache(model, idx[None])[0]
    assert run_with_cache(model, idx)[0].equal(expected)
    assert run_with_cache(model, idx.tolist())[0].equal(expected)


def test_the_limit_itself_is_allowed() -> None:
    assert run_with_cache(sharp_model(), some_ids(), "logits", memory_limit=2 * 7 * 23 * 4)[1].nbytes == 2 * 7 * 23 * 4


@pytest.mark.parametrize(
    ("idx", "words"),
    [
        (torch.zeros(1, 17, dtype=torch.long), "longer than block_size"),
        (torch.full((1, 3), 23), "outside the vocabulary"),
    ],
    ids=["long", "vocabulary"],
)
def test_ids_that_do_not_fit(idx: Tensor, words: str) -> None:
    model = sharp_model()
    before = state_of(model)
    with pytest.raises(InputError) as error:
        run_with_cache(model, idx)
    assert words in str(error.value)
    assert state_of(model) == before
