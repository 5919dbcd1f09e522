import pytest

from gpt.inspection.tracing.activation_names import (
    Key,
    activations,
    capture_bytes,
    expand,
    select,
)
from gpt.system.errors import InputError
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
        ("blocks.*.attn.hook_pattern", ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]),
        ("blocks.1.ln?.*", ["blocks.1.ln1.hook_normalized", "blocks.1.ln2.hook_normalized"]),
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
        ("zzz", "unknown activation zzz"),
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
        (("pattern", -1), "blocks.3.attn.hook_pattern"),
        (("pattern", -5), "blocks.-1.attn.hook_pattern"),
        ("hook_embed", "hook_embed"),
    ],
    ids=str,
)
def test_short_keys(key: Key, name: str) -> None:
    assert expand(key, n_layer=4) == name


@pytest.mark.parametrize("name", [name for name in SWIGLU_TABLE if name.startswith("blocks.0.") and ".ln" not in name])
def test_every_name_of_a_block_has_a_short_key_of_its_own(name: str) -> None:
    assert expand((name.rsplit("hook_", 1)[-1], 0), n_layer=2) == name
