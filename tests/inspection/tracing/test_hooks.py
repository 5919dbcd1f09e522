"""Hooks and the edits that are made by them, against changes of the weights."""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpt.extras.inspection.tracing.activation_cache import Edits, edited_model, run_with_cache
from gpt.extras.inspection.tracing.activation_names import activations
from gpt.extras.inspection.tracing.edits import Edit, replace, scale, zero
from gpt.extras.inspection.tracing.hooks import with_hooks
from gpt.extras.inspection.tracing.shape_trace import trace_shapes
from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.system.errors import InputError
from inspection.variants import VARIANTS, every_variant, some_ids, state_of
from planted_edits import EDITS
from tiny import sharp_model

D = 8  # of a head
Z = "blocks.0.attn.hook_z"


def unchanged(name: str, x: Tensor) -> Tensor:
    return x


def everything(model: GPT) -> list[str]:
    return list(activations(model.config))


@every_variant
def test_hooks_visit_every_name_once_in_order(variant: dict[str, object]) -> None:
    """Not even touched while its copy runs, so that others can use it at the same time."""
    model = sharp_model(**variant)
    idx = some_ids()
    visited = []
    before = state_of(model)
    cores = [block.attn.core for block in model.h]
    logits = model(idx)

    def use_model(name: str, x: Tensor) -> Tensor:
        visited.append(name)
        assert torch.equal(model(idx), logits)
        return x * 2

    with_hooks(model, everything(model), use_model)(idx)
    order = [
        name
        for name in everything(model)
        if not name.endswith(("hook_v", "hook_rot_q", "hook_rot_k"))
    ]
    assert [name for name in visited if name in order] == order
    assert sorted(visited) == sorted(everything(model))
    assert state_of(model) == before
    assert all(block.attn.core is core for block, core in zip(model.h, cores, strict=True))


def set_forward(module: nn.Module, wrap: Callable[..., Any]) -> None:
    """Wrap a module's forward as libraries do."""
    module.forward = update_wrapper(partial(wrap, module.forward), module.forward)  # type: ignore[method-assign]


@pytest.mark.parametrize("path", ["", "h.0", "h.0.attn", "h.1.mlp"])
def test_wrappers_of_a_forward_are_left_out(path: str) -> None:
    model = sharp_model()
    idx = some_ids()
    logits, cache = run_with_cache(model, idx)
    rows = trace_shapes(model, idx)
    module = model.get_submodule(path)
    set_forward(module, lambda forward, *given: forward(*given))
    set_forward(module, lambda forward, *given: forward(*given))
    found, others = run_with_cache(model, idx)
    assert torch.equal(found, logits)
    assert list(others) == list(cache)
    assert all(torch.equal(others[name], cache[name]) for name in cache)
    assert trace_shapes(model, idx) == rows
    assert "forward" in vars(module)


def test_replaced_forward_is_traced_as_far_as_it_goes() -> None:
    model = sharp_model()
    idx = some_ids()
    mlp = model.get_submodule("h.0.mlp")
    mlp.forward = lambda x: 0 * x  # type: ignore[method-assign]
    logits, cache = run_with_cache(
        model, idx, ["blocks.0.hook_mlp_out", "blocks.1.attn.hook_pattern"]
    )
    torch.testing.assert_close(logits, model(idx))
    assert not cache["blocks.0.hook_mlp_out"].any()
    message = (
        r"^blocks\.0\.mlp\.hook_p(re|ost) cannot be seen: .* was replaced; restore that \(del "
        r"module\.forward\)$"
    )
    with pytest.raises(InputError, match=message):
        run_with_cache(model, idx)
    with pytest.raises(InputError, match=message):  # an edit is not ignored either
        run_with_cache(model, idx, [], {"blocks.0.mlp.hook_post": zero()})
    with pytest.raises(InputError, match=message):
        edited_model(model, {"blocks.0.mlp.hook_post": zero()})(idx)
    with pytest.raises(
        InputError, match=r"^the shapes cannot be traced: the model runs other operations"
    ):
        trace_shapes(model, idx)


def test_hooks_draw_no_dropout_of_a_model_that_trains() -> None:
    model = sharp_model(dropout=0.5).train()
    idx = some_ids()
    before = torch.get_rng_state()
    copy = with_hooks(model, ["blocks.0.attn.hook_pattern"], unchanged)
    assert torch.equal(copy(idx), copy(idx))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())


@torch.no_grad()
@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "model"])
@pytest.mark.parametrize(
    "name", ["blocks.0.attn.hook_z", "blocks.1.hook_attn_out", "blocks.0.attn.hook_pattern"]
)
def test_hooks_reach_a_compiled_model(name: str, whole: bool) -> None:
    """Each name once, and what the hook gives reaches the logits.

    The compiled one itself stays as it is.
    """
    model = sharp_model()
    idx = some_ids()
    visited = []
    plain = model(idx)
    for block in [] if whole else model.h:
        block.compile(backend="eager")
    run = torch.compile(model, backend="eager") if whole else model
    torch.testing.assert_close(run(idx), plain)  # compiled here, before there are hooks
    changed = with_hooks(run, [name], lambda name, x: (visited.append(name), x * 0.5)[1])(idx)
    assert visited == [name]
    assert not torch.allclose(changed, plain, atol=1e-2)
    torch.testing.assert_close(run(idx), plain)


def test_attention_of_another_formula_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"norm": "rmsnorm", "position": "rope", "qk_norm": True, "block_size": 72}
    model = sharp_model(**recipe)
    idx = torch.arange(72).remainder(23).unsqueeze(0)
    run_with_cache(model, idx)
    EDITS["a window of 64"](monkeypatch)
    with pytest.raises(
        InputError, match=r"attention cannot be shown.*softmax\(q k\^T / sqrt\(D\)\) v"
    ):
        run_with_cache(model, idx, "blocks.*.attn.hook_pattern")
    logits, _ = run_with_cache(model, idx, "*resid_post")
    torch.testing.assert_close(logits, model(idx))


def test_blocks_of_another_class_run_as_they_are() -> None:
    class Doubled(Block):
        def forward(self, *args: Any) -> Tensor:
            return 2 * super().forward(*args)

    model = sharp_model()
    idx = some_ids()
    plain = model(idx)
    model.h[0].__class__ = Doubled  # the norm after the last one would hide a factor
    logits, _ = run_with_cache(model, idx, "*resid_post")
    torch.testing.assert_close(logits, model(idx))
    assert not torch.allclose(logits, plain)


def edited_logits(model: GPT, edits: Edits) -> Tensor:
    with torch.no_grad():
        return run_with_cache(model, some_ids(), [], edits)[0]


@every_variant
@pytest.mark.parametrize(
    ("name", "edit", "weights", "part", "factor"),
    [
        ("blocks.1.attn.hook_z", zero(0), "h.1.attn.c_proj.weight", np.s_[:, :D], 0.0),
        ("blocks.1.attn.hook_z", scale(-2.0, 3), "h.1.attn.c_proj.weight", np.s_[:, 3 * D :], -2.0),
        # query heads may share it
        (
            "blocks.0.attn.hook_v",
            zero(0),
            "h.0.attn.c_v",
            np.s_[:D],
            0.0,
        ),
        ("blocks.1.hook_attn_out", scale(0.5), "h.1.attn.c_proj", ..., 0.5),
    ],
)
def test_edit_equals_a_change_of_the_weights_that_made_it(
    variant: dict[str, object], name: str, edit: Edit, weights: str, part: Any, factor: float
) -> None:
    model = sharp_model(**{**variant, "tie_weights": False})
    edited = edited_logits(model, {name: edit})
    for path, parameter in model.named_parameters():
        if path.startswith(weights):
            parameter.data[part] *= factor
    torch.testing.assert_close(edited, model(some_ids()), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("value", "head"),
    [
        (0.25, None),
        (torch.arange(8.0), None),
        (torch.arange(8.0), 2),
        (torch.randn(7, 4, 8), None),
        (1, 3),
    ],
    ids=["number", "vector", "vector, one head", "no batch", "one head"],
)
def test_replace_broadcasts_a_value(value: Tensor | float, head: int | None) -> None:
    model = sharp_model()
    expected = run_with_cache(model, some_ids(), Z)[1][Z].clone()
    expected[:, :, slice(None) if head is None else head] = value
    torch.testing.assert_close(
        run_with_cache(model, some_ids(), Z, {Z: replace(value, head)})[1][Z], expected
    )


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        (Z, zero(4), "has heads 0 to 3, not 4"),
        (Z, zero(-1), "has heads 0 to 3, not -1"),
        ("blocks.0.attn.hook_k", zero(2), "has heads 0 to 1, not 2"),
        (
            "blocks.0.hook_resid_pre",
            zero(0),
            "blocks.0.hook_resid_pre has no heads; its axes are B T C",
        ),
        (
            "blocks.0.attn.hook_pattern",
            lambda x: x[:1],
            "gave (1, 4, 7, 7) torch.float32 for (2, 4",
        ),
        (Z, Edit(lambda x: x.unsqueeze(0), 1), "gave (1, 2, 7, 8) torch.float32 for (2, 7, 8)"),
        ("logits", lambda x: None, "an edit of logits gave NoneType, not a tensor"),
        (
            "hook_embed",
            lambda x: x.double(),
            "an edit of hook_embed gave (2, 7, 32) torch.float64 for (2, 7, 32)",
        ),
        ("blocks.0.attn.hook_zz", zero(), "did you mean blocks.0.attn.hook_z?"),
    ],
)
def test_edit_that_does_not_fit_is_refused(name: str, edit: Edit, words: str) -> None:
    model = sharp_model(**VARIANTS["written out"])
    before = state_of(model)
    with pytest.raises(InputError) as error:
        run_with_cache(model, some_ids(), edits={name: edit})
    assert words in str(error.value)
    assert state_of(model) == before
