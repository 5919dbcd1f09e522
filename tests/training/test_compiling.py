"""Compilation itself is replaced, but for one test: what matters here is how its failures end."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.system.errors import DeviceError
from gpt.system.processor import AMX, AVX2, NEON
from gpt.training.compiling import compile_blocks, is_compiled, should_compile, without_compilation
from tiny import tiny_config

CPU = torch.device("cpu")
IDX = torch.arange(16).view(1, -1)


@pytest.fixture
def model() -> GPT:
    return GPT(tiny_config(dropout=0.5))


def trial_of(model: GPT) -> Callable[[], object]:
    """A forward and backward pass, with dropout."""
    return lambda: model(IDX).sum().backward()


def fail_at_once(block: Block) -> None:
    raise RuntimeError("no compiler here\nand a long story")


def fail_when_called(block: Block) -> None:
    def call(*arguments: Any, **names: Any) -> Any:
        torch.rand(10)
        raise ValueError

    block._compiled_call_impl = call


@pytest.mark.parametrize(
    ("compile_block", "reason"), [(fail_at_once, "no compiler here"), (fail_when_called, "ValueError")]
)
def test_where_compiling_fails_the_model_stays_as_it_was_unless_that_is_an_error(
    model: GPT, monkeypatch: pytest.MonkeyPatch, compile_block: Callable[[Block], None], reason: str
) -> None:
    expected, lines = model.eval()(IDX), []
    model.train()
    monkeypatch.setattr(Block, "compile", compile_block)
    before = torch.get_rng_state()
    compile_blocks(model, trial_of(model), required=False, report=lines.append)
    assert lines[1:] == [f"not compiling: {reason}"]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model.eval()(IDX), expected)
    with pytest.raises(DeviceError, match=rf"torch\.compile failed: {reason}; set run\.compile=false"):
        compile_blocks(model, trial_of(model), required=True, report=lines.append)


def test_where_it_works_every_block_is_compiled_and_nothing_else_changes(
    model: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Block] = []
    names, before = list(model.state_dict()), torch.get_rng_state()
    monkeypatch.setattr(Block, "compile", lambda block: compiled.append(block))
    compile_blocks(model, trial_of(model), required=True, report=lambda line: None)
    assert compiled == list(model.h)
    assert list(model.state_dict()) == names
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.skipif(" " in torch.__file__, reason="torch's compiler does not quote the path that torch lies in")
def test_compiled_blocks_have_the_gradients_of_eager_ones() -> None:
    def gradients(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = GPT(tiny_config())
        if compiled:
            compile_blocks(model, trial_of(model), required=True, report=lambda line: None)
        assert is_compiled(model) == compiled
        model(IDX).square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for one, other in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_auto_compiles_only_where_that_was_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.training.compiling.why_not_compile", lambda _: None)
    choices = [("auto", AMX), ("auto", AVX2), ("auto", NEON), (True, AVX2), (False, AMX)]
    found = [should_compile(choice, CPU, processor, pytest.fail) for choice, processor in choices]
    assert found == [True, False, False, True, False]


def test_without_a_compiler_auto_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.training.compiling.why_not_compile", lambda _: "no C++ compiler was found")
    lines: list[str] = []
    assert not should_compile("auto", CPU, AMX, lines.append)
    assert lines == ["not compiling: no C++ compiler was found"]
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler was found; set run.compile=auto or false"):
        should_compile(True, CPU, AMX, lines.append)


def test_inside_the_context_compiled_blocks_run_as_written(model: GPT) -> None:
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(1)
        return graph.forward

    model.eval()
    assert not is_compiled(model)
    for block in model.h:
        block.compile(backend=backend)
    assert is_compiled(model)
    with torch.no_grad():
        with without_compilation(model):
            model(IDX)
        assert compiled == []
        model(IDX)
    assert compiled
