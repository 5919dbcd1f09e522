import subprocess
import sys

import pytest
import torch
from torch import Tensor

from gpt.inspection.tracing.names import activations
from gpt.inspection.tracing.taps import TappedCore, tapped, with_core
from gpt.model import GPT
from gpt.model.attention import ReferenceCore
from inspection.variants import VARIANTS, every_variant, has_hooks, some_ids, state_of
from tiny import sharp_model


def unchanged(name: str, x: Tensor) -> Tensor:
    return x


def everything(model: GPT) -> list[str]:
    return list(activations(model.config))


@every_variant
def test_every_name_is_visited_once_in_the_order_of_the_table(variant: dict[str, object]) -> None:
    model, visited = sharp_model(**variant), []
    with tapped(model, everything(model), lambda name, x: (visited.append(name), x)[1]):
        model(some_ids())
    order = [name for name in everything(model) if not name.endswith(("hook_v", "hook_rot_q", "hook_rot_k"))]
    assert [name for name in visited if name in order] == order
    assert sorted(visited) == sorted(everything(model))


@every_variant
def test_the_model_is_as_it_was_afterwards(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    before, cores = state_of(model), [block.attn.core for block in model.h]
    with tapped(model, everything(model), unchanged):
        assert has_hooks(model)
        model(some_ids())
    assert state_of(model) == before
    assert all(block.attn.core is core for block, core in zip(model.h, cores, strict=True))


@pytest.mark.parametrize("name", ["hook_embed", "blocks.0.attn.hook_pattern", "blocks.1.hook_resid_mid", "logits"])
def test_the_model_is_as_it_was_after_an_error_inside(name: str) -> None:
    def fail(name: str, x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model, idx = sharp_model(), some_ids()
    before, logits = state_of(model), model(idx)
    with pytest.raises(ZeroDivisionError), tapped(model, [name], fail):
        model(idx)
    assert state_of(model) == before
    assert torch.equal(model(idx), logits)


def test_nothing_is_touched_where_nothing_is_wanted() -> None:
    model = sharp_model()
    before = state_of(model)
    with tapped(model, [], unchanged):
        assert state_of(model) == before


def test_attention_is_written_out_only_in_the_layers_looked_into() -> None:
    model = sharp_model()
    cores = [block.attn.core for block in model.h]
    with tapped(model, ["blocks.1.attn.hook_pattern", "blocks.0.attn.hook_z"], unchanged):
        assert model.h[0].attn.core is cores[0]
        assert model.h[1].attn.core is not cores[1]


@pytest.mark.parametrize("inner", [["blocks.0.attn.hook_pattern"], ["blocks.0.hook_resid_mid", "logits"]], ids=str)
def test_a_context_within_another(inner: list[str]) -> None:
    model, idx = sharp_model(**VARIANTS["llama"]), some_ids()
    before, outer_seen, inner_seen = state_of(model), [], []
    names = ["blocks.0.attn.hook_pattern", "blocks.0.hook_resid_mid", "hook_embed"]
    with tapped(model, names, lambda name, x: (outer_seen.append(name), x)[1]):
        with tapped(model, inner, lambda name, x: (inner_seen.append(name), x)[1]):
            model(idx)
        assert inner_seen == inner
        outer_seen.clear()
        model(idx)
    assert sorted(outer_seen) == sorted(names)
    assert state_of(model) == before


def test_changes_of_nested_contexts_add_up() -> None:
    model, idx = sharp_model(), some_ids()
    plain = model(idx)
    with tapped(model, ["logits"], lambda name, x: x * 2), tapped(model, ["logits"], lambda name, x: x + 1):
        torch.testing.assert_close(model(idx), plain * 2 + 1)


def test_two_passes_within_one_context_see_their_own_stream() -> None:
    model, seen = sharp_model(), []
    first, second = some_ids(1, 5), some_ids(2, 9)
    with tapped(model, ["blocks.0.hook_resid_mid"], lambda name, x: (seen.append(x.shape), x)[1]):
        model(first)
        model(second)
    assert seen == [(1, 5, 32), (2, 9, 32)]


@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_the_written_out_core_follows_the_mode(training: bool) -> None:
    model, idx = sharp_model(dropout=0.5).train(training), some_ids()
    with tapped(model, ["blocks.0.attn.hook_pattern"], unchanged):
        assert model.h[0].attn.core.training is training
        assert torch.equal(model(idx), model(idx)) is not training


@pytest.mark.parametrize("training", [True, False])
def test_the_written_out_core_is_the_reference(training: bool) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    outputs = []
    for core in (TappedCore(0.5, unchanged), ReferenceCore(0.5)):
        torch.manual_seed(3)  # of the dropout
        outputs.append(core.train(training)(q, k, v, None))
    assert torch.equal(*outputs)


@every_variant
def test_training_goes_on_under_taps(variant: dict[str, object]) -> None:
    """The gradients of the weights are the plain ones."""
    model, idx = sharp_model(**variant).train(), some_ids()
    model(idx).square().mean().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with tapped(model, everything(model), unchanged):
        model(idx).square().mean().backward()
    largest = max(float(gradient.abs().max()) for gradient in plain)
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5 * largest)


def test_with_core_keeps_the_mode_and_gives_the_core_back() -> None:
    attn = sharp_model().train().h[0].attn
    kept, core = attn.core, ReferenceCore(0.0).eval()
    seen = []

    def look() -> None:
        with with_core(attn, core):
            seen.append((attn.core, core.training))
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert seen == [(core, True)]
    assert attn.core is kept


@torch.no_grad()
@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "model"])
@pytest.mark.parametrize("name", ["blocks.0.attn.hook_z", "blocks.1.hook_resid_mid", "blocks.0.attn.hook_pattern"])
def test_what_is_compiled_is_tapped_too(name: str, whole: bool) -> None:
    """Each name once, and what the tap gives reaches the logits; afterwards the compiled one runs again."""
    model, idx, visited = sharp_model(), some_ids(), []
    plain = model(idx)
    for block in [] if whole else model.h:
        block.compile(backend="eager")
    run = torch.compile(model, backend="eager") if whole else model
    torch.testing.assert_close(run(idx), plain)  # compiled here, before there are hooks
    with tapped(run, [name], lambda name, x: (visited.append(name), x * 0.5)[1]):
        changed = run(idx)
    assert visited == [name]
    assert not torch.allclose(changed, plain, atol=1e-2)
    torch.testing.assert_close(run(idx), plain)


def test_a_model_that_is_not_compiled_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from gpt.config import ModelConfig\n"
        "from gpt.model import GPT\n"
        "from gpt.inspection.tracing.taps import tapped\n"
        "model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=4, block_size=4, vocab_size=3))\n"
        "with tapped(model, ['logits'], lambda name, x: x):\n"
        "    model(torch.zeros(1, 2, dtype=torch.long))\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_the_scale_of_a_half_precision_stream_does_not_overflow(norm: str) -> None:
    model, seen = sharp_model(norm=norm).half(), []
    stream = torch.tensor([300.0, -300.0] * 16).half().expand(1, 2, -1)
    with tapped(model, ["ln_final.hook_scale"], lambda name, x: (seen.append(x), x)[1]):
        model.ln_f(stream)
    assert seen[0].dtype == torch.float16
    assert seen[0].flatten().tolist() == [300.0, 300.0]
