from typing import Any

import pytest
import torch
from torch import Tensor

import gpt
from gpt.inspection.tracing.activation_names import activations
from gpt.inspection.tracing.hooks import HookedCore, with_hooks
from gpt.kernels.training.block import replace_blocks
from gpt.model import GPT
from gpt.model.attention import ReferenceCore
from gpt.model.gpt import Block
from gpt.system.errors import InputError
from inspection.variants import every_variant, has_hooks, some_ids, state_of
from planted_edits import EDITS
from tiny import sharp_model


def unchanged(name: str, x: Tensor) -> Tensor:
    return x


def everything(model: GPT) -> list[str]:
    return list(activations(model.config))


@every_variant
def test_every_name_is_visited_once_in_the_order_of_the_table(variant: dict[str, object]) -> None:
    model, visited = sharp_model(**variant), []
    with_hooks(model, everything(model), lambda name, x: (visited.append(name), x)[1])(some_ids())
    order = [name for name in everything(model) if not name.endswith(("hook_v", "hook_rot_q", "hook_rot_k"))]
    assert [name for name in visited if name in order] == order
    assert sorted(visited) == sorted(everything(model))


@every_variant
def test_the_model_itself_is_not_touched(variant: dict[str, object]) -> None:
    """Not even while its copy runs, so that others can use it at the same time."""
    model, idx = sharp_model(**variant), some_ids()
    before, cores, logits = state_of(model), [block.attn.core for block in model.h], model(idx)

    def use_model(name: str, x: Tensor) -> Tensor:
        assert torch.equal(model(idx), logits)
        return x * 2

    copy = with_hooks(model, everything(model), use_model)
    assert has_hooks(copy)
    copy(idx)
    assert state_of(model) == before
    assert all(block.attn.core is core for block, core in zip(model.h, cores, strict=True))


def test_attention_is_written_out_only_in_the_layers_looked_into() -> None:
    model = sharp_model()
    copy = with_hooks(model, ["blocks.1.attn.hook_pattern", "blocks.0.attn.hook_z"], unchanged)
    assert [isinstance(block.attn.core, HookedCore) for block in copy.h] == [False, True]
    assert not has_hooks(with_hooks(model, [], unchanged))


def test_changes_of_a_copy_of_a_copy_add_up() -> None:
    model, idx = sharp_model(), some_ids()
    doubled = with_hooks(model, ["logits"], lambda name, x: x * 2)
    both = with_hooks(doubled, ["logits"], lambda name, x: x + 1)
    torch.testing.assert_close(both(idx), model(idx) * 2 + 1)
    torch.testing.assert_close(doubled(idx), model(idx) * 2)


def test_two_passes_of_one_copy_see_their_own_stream() -> None:
    model, seen = sharp_model(), []
    first, second = some_ids(1, 5), some_ids(2, 9)
    copy = with_hooks(model, ["blocks.0.hook_attn_out"], lambda name, x: (seen.append(x.shape), x)[1])
    copy(first)
    copy(second)
    assert seen == [(1, 5, 32), (2, 9, 32)]


def test_looking_into_a_model_that_trains_draws_no_dropout() -> None:
    model, idx, before = sharp_model(dropout=0.5).train(), some_ids(), torch.get_rng_state()
    copy = with_hooks(model, ["blocks.0.attn.hook_pattern"], unchanged)
    assert torch.equal(copy(idx), copy(idx))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())


def test_the_written_out_core_is_the_reference() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    cores = HookedCore(ReferenceCore(0.5), unchanged).eval(), ReferenceCore(0.5).eval()
    assert torch.equal(*(core(q, k, v, None) for core in cores))


@every_variant
def test_training_goes_on_under_taps(variant: dict[str, object]) -> None:
    """The gradients of the weights are the plain ones."""
    model, idx = sharp_model(**variant).train(), some_ids()
    model(idx).square().mean().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with_hooks(model, everything(model), unchanged)(idx).square().mean().backward()
    largest = max(float(gradient.abs().max()) for gradient in plain)
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5 * largest)


@torch.no_grad()
@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "model"])
@pytest.mark.parametrize("name", ["blocks.0.attn.hook_z", "blocks.1.hook_attn_out", "blocks.0.attn.hook_pattern"])
def test_what_is_compiled_is_tapped_too(name: str, whole: bool) -> None:
    """Each name once, and what the hook gives reaches the logits; the compiled one itself stays as it is."""
    model, idx, visited = sharp_model(), some_ids(), []
    plain = model(idx)
    for block in [] if whole else model.h:
        block.compile(backend="eager")
    run = torch.compile(model, backend="eager") if whole else model
    torch.testing.assert_close(run(idx), plain)  # compiled here, before there are hooks
    changed = with_hooks(run, [name], lambda name, x: (visited.append(name), x * 0.5)[1])(idx)
    assert visited == [name]
    assert not torch.allclose(changed, plain, atol=1e-2)
    torch.testing.assert_close(run(idx), plain)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_trains_by_native_kernels_is_tapped_too(training: bool) -> None:
    """With gradients its blocks do not call the modules inside, which the hooks are on; no kernel is called here."""
    model = sharp_model(dropout=0.1).train(training)
    names, idx = everything(model), some_ids()
    torch.manual_seed(1)  # of the dropout
    plain = with_hooks(model, names, unchanged)(idx)
    replace_blocks(model, kernels=None)
    model.train(training)
    visited: list[str] = []
    torch.manual_seed(1)
    logits = with_hooks(model, names, lambda name, x: (visited.append(name), x)[1])(idx)
    assert sorted(visited) == sorted(names)
    assert torch.equal(logits, plain)


def test_attention_is_written_out_as_an_edited_model_computes_it_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"norm": "rmsnorm", "position": "rope", "qk_norm": True, "block_size": 72}
    model, idx = sharp_model(**recipe), torch.arange(72).remainder(23).unsqueeze(0)
    gpt.run_with_cache(model, idx)
    EDITS["a window of 64"](monkeypatch)
    with pytest.raises(InputError, match=r"attention cannot be shown.*softmax\(q k\^T / sqrt\(D\)\) v"):
        gpt.run_with_cache(model, idx, "blocks.*.attn.hook_pattern")
    logits, _ = gpt.run_with_cache(model, idx, "*resid_post")
    assert torch.equal(logits, model(idx))


def test_blocks_of_a_class_of_ones_own_are_run_as_they_are() -> None:
    class Doubled(Block):
        def forward(self, *args: Any) -> Tensor:
            return 2 * super().forward(*args)

    model, idx = sharp_model(), some_ids()
    plain = model(idx)
    model.h[0].__class__ = Doubled  # the norm after the last one would hide a factor
    logits, _ = gpt.run_with_cache(model, idx, "*resid_post")
    assert torch.equal(logits, model(idx))
    assert not torch.allclose(logits, plain)
