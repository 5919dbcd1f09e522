import pytest

from gpt.errors import InputError
from gpt.inspection.tracing.activation_names import (
    Key,
    NoSuchActivation,
    activations,
    capture_bytes,
    expand,
    select,
)
from inspection.variants import VARIANTS
from tiny import tiny_config

TABLE = activations(tiny_config())
SWIGLU_TABLE = activations(tiny_config(**VARIANTS["llama"]))


def test_logits_take_four_bytes_whatever_the_model_takes() -> None:
    config = tiny_config()
    names = ["blocks.0.attn.hook_pattern", "logits"]
    assert capture_bytes(config, names, 3, 5, itemsize=2) == 3 * 4 * 5 * 5 * 2 + 3 * 5 * 23 * 4


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
        ("logit", "unknown activation logit; did you mean logits?"),
        ("blocks.7.attn.hook_z", "did you mean blocks."),
        ("blocks.0.attn.hook_rot_q", "unknown activation blocks.0.attn.hook_rot_q"),  # a name of other models
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
        (("hook_z", 0), "blocks.0.attn.hook_z"),
        (("ln2.hook_scale", 0), "blocks.0.ln2.hook_scale"),
        (("nothing", 3), "blocks.3.nothing"),
        (("normalized", 0, "ln1"), "blocks.0.ln1.hook_normalized"),
        (("scale", 1, "ln2"), "blocks.1.ln2.hook_scale"),
        (("pre", 1, "mlp"), "blocks.1.mlp.hook_pre"),
        (("attn", 1), "blocks.1.attn.hook_pattern"),
        (("attn_logits", 1), "blocks.1.attn.hook_attn_scores"),
        (("query", 0), "blocks.0.attn.hook_q"),
        (("value", 1), "blocks.1.attn.hook_v"),
        (("mlp_post", 1), "blocks.1.mlp.hook_post"),
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
