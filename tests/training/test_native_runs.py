"""Runs whose blocks train by native kernels, and those that cannot."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import PROCESSORS_HERE, needs_compiler

from gpt.checkpoint import read_checkpoint
from gpt.model.gpt import Block
from gpt.system.errors import DeviceError, NonFiniteError
from training.sessions import Start

NATIVE = ("run.kernels=native", "run.dtype=auto", "model.n_embd=64")


@needs_compiler
def test_a_run_by_native_kernels_says_so_and_learns(tmp_path: Path, start: Start) -> None:
    lines: list[str] = []
    trainer = start(tmp_path, *NATIVE, "run.kernels=auto", "run.compile=auto", report=lines.append)
    best = PROCESSORS_HERE[0]
    dtype = str(best.matmul_dtype).removeprefix("torch.")
    assert f"training blocks by native kernels ({best.name}, {dtype})" in lines
    assert not any("compil" in line for line in lines[:-1])
    assert lines[-1].endswith(dtype)
    first = trainer.run()
    assert first.val_loss is not None
    assert first.val_loss < 3.3


@needs_compiler
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("place", ["loss", "gradient", "weight"])
def test_a_step_that_is_not_finite_changes_nothing(tmp_path: Path, start: Start, place: str, optimizer: str) -> None:
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
    assert all(torch.equal(*pair) for pair in zip(seen[-1], trainer.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["run.dtype=float16"], "the native kernels are for float32 and bfloat16 on a CPU"),
        ([], "the native kernels do not cover heads 8 wide"),
        ([*NATIVE, "model.mlp=gelu_tanh"], "the native kernels do not cover model.mlp=gelu_tanh"),
        ([*NATIVE, "model.attention=reference"], "the native kernels do not cover model.attention=reference"),
        ([*NATIVE, "model.attention=sdpa"], "the native kernels do not cover model.attention=sdpa"),
        ([*NATIVE, "model.bias=true"], "the native kernels do not cover biases"),
    ],
)
def test_where_they_do_not_apply_auto_says_why_and_native_refuses(
    tmp_path: Path, start: Start, overrides: list[str], reason: str
) -> None:
    lines: list[str] = []
    trainer = start(tmp_path, *overrides, "run.kernels=auto", "run.name=auto", "train.max_steps=3", report=lines.append)
    assert [line for line in lines if line.startswith(f"training with PyTorch's operators: {reason}")]
    assert [type(block) for block in trainer.model.h] == [Block]
    assert trainer.run().step == 3
    with pytest.raises(DeviceError, match=f"^run.kernels is native, but {reason}[^\n]*set run.kernels=auto or torch$"):
        start(tmp_path / "native", *overrides, "run.kernels=native")
    assert not (tmp_path / "native" / "runs").exists()


def test_a_processor_without_bfloat16_says_why_and_native_refuses(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_PROCESSOR", "generic")
    overrides = [*NATIVE, "run.dtype=bfloat16"]
    reason = "this processor (generic) has no instructions for bfloat16"
    with pytest.raises(DeviceError, match=rf"^run\.kernels is native, but {re.escape(reason)}; set "):
        start(tmp_path, *overrides)
    lines: list[str] = []
    start(tmp_path, *overrides, "run.kernels=auto", report=lines.append)
    assert f"training with PyTorch's operators: {reason}" in lines
    assert "bfloat16 is far slower than float32 here: this processor (generic) has no instructions for it" in lines


def test_a_compilation_that_is_asked_for_takes_the_place_of_native_kernels(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Block] = []
    monkeypatch.setattr(Block, "compile", lambda block: compiled.append(block))
    monkeypatch.setattr("gpt.training.compiling.why_not_compile", lambda device: None)
    trainer = start(tmp_path, *NATIVE, "run.kernels=auto", "run.compile=true")
    assert compiled == list(trainer.model.h)
    lines: list[str] = []
    trainer = start(tmp_path, *NATIVE, "run.kernels=torch", "run.name=torch", report=lines.append)
    assert [type(block) for block in trainer.model.h] == [Block]
    assert not any("native kernels" in line for line in lines)
    with pytest.raises(
        DeviceError, match=r"^run\.compile is true, but torch does not compile native kernels; set run\.kernels=torch$"
    ):
        start(tmp_path / "native", *NATIVE, "run.compile=true")


@needs_compiler
def test_a_checkpoint_of_native_kernels_goes_on_without_them(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, *NATIVE, "train.max_steps=3")
    trainer.run()
    saved = read_checkpoint(trainer.run_folder.checkpoints()[0]).model
    there = start(tmp_path, *NATIVE, "run.kernels=torch", resume=str(tmp_path / "runs/run"))
    present = there.model.state_dict()
    assert all(torch.equal(present[name], weight) for name, weight in saved.items())
    assert there.run().step == 6
