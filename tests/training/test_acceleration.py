"""Native kernels and torch.compile: where they are used, and how their failures end."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from native_support import PROCESSORS_HERE, needs_compiler

from gpt.checkpoint import read_checkpoint
from gpt.model import GPT
from gpt.model.gpt import Block
from gpt.system.errors import DeviceError, NonFiniteError
from gpt.training.acceleration import compile_blocks
from tiny import tiny_config
from training.sessions import start_session as start

IDX = torch.arange(16).view(1, -1)
NATIVE = ("run.kernels=native", "run.dtype=auto", "model.n_embd=64")


@needs_compiler
def test_run_by_native_kernels_says_so_and_resumes_without_them(tmp_path: Path) -> None:
    lines: list[str] = []
    trainer = start(tmp_path, *NATIVE, "run.kernels=auto", report=lines.append)
    best = PROCESSORS_HERE[0]
    dtype = str(best.matmul_dtype).removeprefix("torch.")
    assert f"training by native kernels ({best.name}, {dtype})" in lines
    assert not any("compil" in line for line in lines[:-1])
    assert lines[-1].endswith(dtype)
    first = trainer.run()
    assert first.val_loss is not None
    assert first.val_loss < 3.3
    folder = trainer.run_folder.path / "checkpoints/step-000003"
    there = start(tmp_path, *NATIVE, "run.kernels=torch", resume=str(folder))
    present = there.model.state_dict()
    assert all(
        torch.equal(present[name], weight) for name, weight in read_checkpoint(folder).model.items()
    )
    assert [type(block) for block in there.model.h] == [Block]
    assert there.run().step == 6


@needs_compiler
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("place", ["loss", "gradient", "weight"])
def test_native_step_that_is_not_finite_changes_nothing(
    tmp_path: Path, place: str, optimizer: str
) -> None:
    trainer = start(tmp_path, *NATIVE, f"optim.name={optimizer}", "train.eval_interval=1000")
    weight = trainer.model.h[0].attn.c_proj.weight
    seen: list[list[torch.Tensor]] = []
    step = trainer.stepper.step

    def spoiled(number: int, *arguments: Any) -> Any:
        if number == 2 and place == "weight":
            weight.data[0, 0] = torch.inf
        seen.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        return step(number, *arguments)

    def spoil(name: str, value: torch.Tensor) -> torch.Tensor:
        return value * torch.nan if place == name and trainer.state.step == 2 else value

    trainer.stepper.step = spoiled  # type: ignore[method-assign]
    trainer.model.register_forward_hook(lambda module, inputs, logits: spoil("loss", logits))
    weight.register_hook(lambda gradient: spoil("gradient", gradient))
    with pytest.raises(NonFiniteError, match="step 2"):
        trainer.run()
    assert all(
        torch.equal(*pair) for pair in zip(seen[-1], trainer.model.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["run.dtype=float16"], "the native kernels are for float32 and bfloat16 on a CPU"),
        ([], "the native kernels do not cover heads 8 wide"),
        ([*NATIVE, "model.attention=sdpa"], "the native kernels do not cover model.attention=sdpa"),
        ([*NATIVE, "model.n_kv_head=1"], "the native kernels do not cover grouped key and value"),
        (
            [*NATIVE, "run.dtype=bfloat16"],
            r"this processor \(generic\) has no instructions for bfloat16",
        ),
    ],
)
def test_auto_says_why_kernels_do_not_apply_and_native_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], reason: str
) -> None:
    if "generic" in reason:
        monkeypatch.setenv("GPT_PROCESSOR", "generic")
    with pytest.raises(
        DeviceError,
        match=f"^run.kernels is native, but {reason}[^\n]*set run.kernels=auto or torch$",
    ):
        start(tmp_path, *overrides, "run.kernels=native")
    assert not list((tmp_path / "runs").glob("[!.]*"))
    lines: list[str] = []
    trainer = start(
        tmp_path, *overrides, "run.kernels=auto", "train.max_steps=1", report=lines.append
    )
    assert (
        sum(bool(re.match(f"training with PyTorch's operators: {reason}", line)) for line in lines)
        == 1
    )
    assert [type(block) for block in trainer.model.h] == [Block]
    assert trainer.run().step == 1


def test_failing_compiler_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT(tiny_config(dropout=0.5))
    error = RuntimeError("no compiler here\nand a long story")
    monkeypatch.setattr(Block, "compile", Mock(side_effect=error))
    with pytest.raises(
        DeviceError, match=r"torch\.compile failed: no compiler here; set run\.compile=false"
    ):
        compile_blocks(model, lambda: model(IDX).sum().backward(), report=lambda line: None)


@pytest.mark.compiler
@pytest.mark.skipif(
    " " in torch.__file__, reason="torch's compiler does not quote the path that torch lies in"
)
def test_compiled_blocks_have_the_gradients_of_eager_ones() -> None:
    def gradients(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = GPT(tiny_config())
        names = list(model.state_dict())
        before = torch.get_rng_state()
        if compiled:
            compile_blocks(model, lambda: model(IDX).sum().backward(), report=lambda line: None)
        assert [block._compiled_call_impl is not None for block in model.h] == [compiled] * 2
        assert list(model.state_dict()) == names
        assert torch.equal(torch.get_rng_state(), before)
        assert all(parameter.grad is None for parameter in model.parameters())
        model(IDX).square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for one, other in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
