import pytest

from gpt.errors import InputError
from gpt.inspection.tracing.activation_names import (
    Activation,
    Key,
    NoSuchActivation,
    activations,
    capture_bytes,
    expand,
    select,
)
from inspection.variants import VARIANTS, every_variant
from tiny import tiny_config

TABLE = activations(tiny_config())
SWIGLU_TABLE = activations(tiny_config(**VARIANTS["llama"]))


@every_variant
def test_a_model_has_the_names_of_its_own_parts_only(variant: dict[str, object]) -> None:
    names = activations(tiny_config(**variant))
    rope = variant.get("position") == "rope"
    scored_otherwise = rope or "qk_norm" in variant
    assert ("hook_pos_embed" in names) is not rope
    for layer in (0, 1):
        assert (f"blocks.{layer}.attn.hook_rot_q" in names) is scored_otherwise
        assert (f"blocks.{layer}.attn.hook_rot_k" in names) is scored_otherwise
        assert (f"blocks.{layer}.mlp.hook_pre_linear" in names) is (variant.get("mlp") == "swiglu")
    assert "blocks.2.hook_resid_pre" not in names


def test_names_come_in_the_order_they_are_computed() -> None:
    names = list(TABLE)
    assert names[:3] == ["hook_embed", "hook_pos_embed", "blocks.0.hook_resid_pre"]
    assert names[-4:] == ["blocks.1.hook_resid_post", "ln_final.hook_scale", "ln_final.hook_normalized", "logits"]
    assert len(names) == 2 + 2 * 17 + 3


def test_sizes_by_hand() -> None:
    config = tiny_config(n_kv_head=2, mlp_width=40)  # 32 wide, 4 heads of 8, 23 ids
    shapes = {name: activation.shape(config, 3, 5) for name, activation in activations(config).items()}
    assert shapes["blocks.1.attn.hook_q"] == (3, 5, 4, 8)
    assert shapes["blocks.1.attn.hook_v"] == (3, 5, 2, 8)
    assert shapes["blocks.1.attn.hook_pattern"] == (3, 4, 5, 5)
    assert shapes["blocks.1.ln1.hook_scale"] == (3, 5, 1)
    assert shapes["blocks.1.mlp.hook_post"] == (3, 5, 40)
    assert shapes["logits"] == (3, 5, 23)
    names = ["blocks.0.attn.hook_pattern", "logits"]
    assert capture_bytes(config, names, 3, 5, itemsize=2) == 3 * 4 * 5 * 5 * 2 + 3 * 5 * 23 * 4


@pytest.mark.parametrize(("axes", "axis"), [("B T H D", 2), ("B T K D", 2), ("B H T S", 1), ("B T C", None)])
def test_which_axis_counts_heads(axes: str, axis: int | None) -> None:
    assert Activation(axes, "").head_axis == axis


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("logits", ["logits"]),
        ("hook_logits", ["logits"]),
        ("ln_final", ["ln_final.hook_normalized"]),
        ("blocks.*.attn.hook_pattern", ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]),
        ("blocks.1.ln?.hook_scale", ["blocks.1.ln1.hook_scale", "blocks.1.ln2.hook_scale"]),
        (["logits", "hook_*embed", "logits"], ["hook_embed", "hook_pos_embed", "logits"]),
        ([], []),
        (None, list(TABLE)),
        ("*", list(TABLE)),
    ],
    ids=str,
)
def test_names_and_patterns_are_found_in_computing_order(names: str | list[str] | None, expected: list[str]) -> None:
    assert select(TABLE, names) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "blocks.0.attn.hook_patern",
            "unknown activation blocks.0.attn.hook_patern; did you mean blocks.0.attn.hook_p",
        ),
        ("logit", "did you mean logits?"),
        ("blocks.7.attn.hook_z", "did you mean blocks."),
        ("blocks.0.attn.hook_rot_q", "unknown activation blocks.0.attn.hook_rot_q"),  # a name of other models
        ("blocks.9.*", "unknown activation"),
        ("zzz", "activations(model.config) lists them"),
        ("", "unknown activation"),
    ],
)
def test_an_unknown_name_is_an_error_with_help(name: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        select(TABLE, ["logits", name])
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (("pattern", 0), "blocks.0.attn.hook_pattern"),
        (("attn_scores", 1), "blocks.1.attn.hook_attn_scores"),
        (("q", 1), "blocks.1.attn.hook_q"),
        (("hook_z", 0), "blocks.0.attn.hook_z"),
        (("rot_k", 0), "blocks.0.attn.hook_rot_k"),
        (("resid_mid", 1), "blocks.1.hook_resid_mid"),
        (("pre", 0), "blocks.0.mlp.hook_pre"),
        (("pre_linear", 0), "blocks.0.mlp.hook_pre_linear"),
        (("ln2.hook_scale", 0), "blocks.0.ln2.hook_scale"),
        (("nothing", 3), "blocks.3.nothing"),
        (("normalized", 0, "ln1"), "blocks.0.ln1.hook_normalized"),
        (("scale", 1, "ln2"), "blocks.1.ln2.hook_scale"),
        (("pre", 1, "mlp"), "blocks.1.mlp.hook_pre"),
        (("attn", 1), "blocks.1.attn.hook_pattern"),
        (("attn_logits", 1), "blocks.1.attn.hook_attn_scores"),
        (("value", 1), "blocks.1.attn.hook_v"),
        (("mlp_post", 1), "blocks.1.mlp.hook_post"),
        (("attn_out", 1), "blocks.1.hook_attn_out"),
        (("pattern", -1), "blocks.3.attn.hook_pattern"),
        (("normalized", -4, "ln2"), "blocks.0.ln2.hook_normalized"),
        (("pattern", -5), "blocks.-1.attn.hook_pattern"),
        ("ln_final", "ln_final.hook_normalized"),
        ("hook_embed", "hook_embed"),
        ("embed", "hook_embed"),
        ("pos_embed", "hook_pos_embed"),
    ],
    ids=str,
)
def test_short_keys(key: Key, name: str) -> None:
    assert expand(key, n_layer=4) == name


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("normalized", 0), "means 2 activations; write ('normalized', 0, 'ln1') or ('normalized', 0, 'ln2')"),
        (("hook_scale", -1), "write ('hook_scale', -1, 'ln1') or ('hook_scale', -1, 'ln2')"),
        (("pattern",), "('pattern',) is not a key; a key is a name, or short, such as (\"pattern\", 0)"),
        (("pattern", "0"), "is not a key"),
        (("scale", 0, "ln1", 0), "is not a key"),
        (3, "3 is not a key"),
    ],
    ids=str,
)
def test_a_key_of_several_meanings_or_none_is_an_error_with_help(key: Key, words: str) -> None:
    with pytest.raises(NoSuchActivation) as error:
        expand(key, n_layer=2)
    assert words in str(error.value)


@pytest.mark.parametrize("name", [name for name in SWIGLU_TABLE if name.startswith("blocks.0.") and ".ln" not in name])
def test_every_name_of_a_block_has_a_short_key_of_its_own(name: str) -> None:
    assert expand((name.rsplit("hook_", 1)[-1], 0), n_layer=2) == name
