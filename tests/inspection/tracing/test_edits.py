from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt.inspection.tracing.activation_cache import Edits, run_with_cache
from gpt.inspection.tracing.activation_names import activations
from gpt.inspection.tracing.edits import Edit, replace, scale, zero
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import VARIANTS, every_variant, some_ids, state_of
from tiny import sharp_model

D = 8  # of a head


def edited_logits(model: GPT, edits: Edits) -> Tensor:
    with torch.no_grad():
        return run_with_cache(model, some_ids(), [], edits)[0]


@every_variant
def test_an_edit_that_changes_nothing_changes_nothing(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    plain, before = model(some_ids()), state_of(model)
    editable = list(activations(model.config))
    for name in editable:
        torch.testing.assert_close(edited_logits(model, {name: torch.clone}), plain, rtol=2e-5, atol=2e-5, msg=name)
    torch.testing.assert_close(edited_logits(model, dict.fromkeys(editable, scale(1.0))), plain, rtol=1e-4, atol=1e-4)
    assert state_of(model) == before


@every_variant
@pytest.mark.parametrize(
    ("name", "edit", "weights", "part", "factor"),
    [
        ("blocks.1.attn.hook_z", zero(0), "h.1.attn.c_proj.weight", np.s_[:, :D], 0.0),
        ("blocks.1.attn.hook_z", scale(-2.0, 3), "h.1.attn.c_proj.weight", np.s_[:, 3 * D :], -2.0),
        ("blocks.0.attn.hook_v", zero(0), "h.0.attn.c_v", np.s_[:D], 0.0),  # query heads may share it
        ("hook_embed", scale(0.5), "wte", ..., 0.5),
        ("blocks.0.hook_mlp_out", scale(0.5), "h.0.mlp.c_proj", ..., 0.5),
        ("blocks.1.hook_attn_out", scale(0.5), "h.1.attn.c_proj", ..., 0.5),
    ],
)
def test_an_edit_is_a_change_of_the_weights_that_make_the_activation(
    variant: dict[str, object], name: str, edit: Edit, weights: str, part: Any, factor: float
) -> None:
    model = sharp_model(**{**variant, "tie_weights": False})
    edited = edited_logits(model, {name: edit})
    for path, parameter in model.named_parameters():
        if path.startswith(weights):
            parameter.data[part] *= factor
    torch.testing.assert_close(edited, model(some_ids()), rtol=1e-5, atol=2e-5)


def test_zeroed_positions_are_a_zeroed_table() -> None:
    model = sharp_model()
    edited = edited_logits(model, {"hook_pos_embed": zero()})
    model.wpe.weight.data.zero_()
    torch.testing.assert_close(edited, model(some_ids()), rtol=1e-5, atol=2e-5)


@every_variant
def test_patching_a_stream_gives_the_run_it_comes_from(variant: dict[str, object]) -> None:
    model, other = sharp_model(**variant), some_ids().flip(0, 1)
    with torch.no_grad():
        logits, cache = run_with_cache(model, other)
    for name in ("hook_resid_pre", "hook_resid_post"):
        patched = edited_logits(model, {f"blocks.1.{name}": replace(cache[f"blocks.1.{name}"])})
        torch.testing.assert_close(patched, logits, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["blocks.0.attn.hook_z", "blocks.1.attn.hook_pattern", "blocks.0.hook_attn_out"])
def test_only_what_comes_later_changes(name: str) -> None:
    model, idx = sharp_model(**VARIANTS["gpt2"]), some_ids()
    plain, edited = run_with_cache(model, idx)[1], run_with_cache(model, idx, edits={name: scale(0.5)})[1]
    names = list(plain)
    torch.testing.assert_close(edited[name], plain[name] * 0.5)
    for earlier in names[: names.index(name)]:
        assert torch.equal(edited[earlier], plain[earlier]), earlier
    for later in ("blocks.1.hook_resid_post", "ln_final.hook_normalized", "logits"):
        assert not torch.allclose(edited[later], plain[later], atol=1e-3), later


@pytest.mark.parametrize(
    ("value", "head"),
    [(0.25, None), (torch.arange(8.0), None), (torch.arange(8.0), 2), (torch.randn(7, 4, 8), None), (1, 3)],
    ids=["number", "vector", "vector, one head", "no batch", "one head"],
)
def test_a_value_in_place_is_broadcast(value: Tensor | float, head: int | None) -> None:
    model, name = sharp_model(), "blocks.0.attn.hook_z"
    plain = run_with_cache(model, some_ids(), name)[1][name]
    edited = run_with_cache(model, some_ids(), name, {name: replace(value, head)})[1][name]
    expected = plain.clone()
    expected[:, :, slice(None) if head is None else head] = value
    torch.testing.assert_close(edited, expected)


@pytest.mark.parametrize("head", [None, 1])
def test_zeros_are_zeros_where_infinity_was(head: int | None) -> None:
    name = "blocks.0.attn.hook_attn_scores"
    with torch.no_grad():
        logits, cache = run_with_cache(sharp_model(), some_ids(), name, {name: zero(head)})
    assert cache[name][:, slice(None) if head is None else head].count_nonzero() == 0
    assert logits.isfinite().all()


def test_a_function_may_change_its_argument_in_place() -> None:
    model, name = sharp_model(), "blocks.0.hook_resid_pre"
    with torch.no_grad():
        cache = run_with_cache(model, some_ids(), ["hook_embed", "hook_pos_embed", name], {name: Tensor.zero_})[1]
        assert cache[name].count_nonzero() == 0
        assert torch.equal(cache["hook_embed"], model.wte(some_ids()))
        again = run_with_cache(model, some_ids(), [name])[1]
        assert again[name].count_nonzero() > 0


def test_gradients_flow_through_an_edit() -> None:
    value = torch.zeros(8, requires_grad=True)
    run_with_cache(sharp_model(), some_ids(), [], {"blocks.0.attn.hook_z": replace(value, 1)})[0].sum().backward()
    assert value.grad is not None
    assert value.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        ("blocks.0.attn.hook_z", zero(4), "has heads 0 to 3, not 4"),
        ("blocks.0.attn.hook_z", zero(-1), "has heads 0 to 3, not -1"),
        ("blocks.0.attn.hook_k", zero(2), "has heads 0 to 1, not 2"),
        ("blocks.0.hook_resid_pre", zero(0), "blocks.0.hook_resid_pre has no heads; its axes are B T C"),
        (
            "blocks.0.attn.hook_pattern",
            lambda x: x[:1],
            "gave (1, 4, 7, 7) torch.float32 for (2, 4",
        ),
        ("blocks.0.attn.hook_z", Edit(lambda x: x.unsqueeze(0), 1), "gave (1, 2, 7, 8) torch.float32 for (2, 7, 8)"),
        ("logits", lambda x: None, "an edit of logits gave NoneType, not a tensor"),
        ("hook_embed", lambda x: x.double(), "an edit of hook_embed gave (2, 7, 32) torch.float64 for (2, 7, 32)"),
        ("blocks.0.attn.hook_zz", zero(), "did you mean blocks.0.attn.hook_z?"),
    ],
)
def test_an_edit_that_does_not_fit(name: str, edit: Edit, words: str) -> None:
    model = sharp_model(**VARIANTS["written out"])
    before = state_of(model)
    with pytest.raises(InputError) as error:
        run_with_cache(model, some_ids(), edits={name: edit})
    assert words in str(error.value)
    assert state_of(model) == before


def test_several_edits_of_one_activation_are_all_made() -> None:
    """Two heads, named by a pattern and by name, and by a list."""
    model, idx, z = sharp_model(), some_ids(), "blocks.0.attn.hook_z"
    kept = torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None]
    both, _ = run_with_cache(model, idx, [], {z: lambda x: x * kept, "blocks.1.attn.hook_z": zero(0)})
    for edits in (
        {"blocks.*.attn.hook_z": zero(0), z: zero(1)},
        {z: [zero(0), zero(1)], "blocks.1.attn.hook_z": zero(0)},
    ):
        torch.testing.assert_close(run_with_cache(model, idx, [], edits)[0], both)
