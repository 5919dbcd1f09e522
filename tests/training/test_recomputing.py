"""Blocks that recompute their activations against those that keep them."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import needs_compiler
from torch import Tensor

from gpt.device import Compute
from gpt.environment import read_settings
from gpt.kernels.training.block import use_native_blocks
from gpt.model import GPT
from gpt.processor import supported_processors
from gpt.training.recomputing import checkpoint_activations
from tiny import tiny_config
from training.sessions import Start, rows, same, weights

CPU = torch.device("cpu")
NARROW = supported_processors()[0].matmul_dtype
IDX = torch.arange(48).view(3, 16) % 23


def model_of(kernels: str, dtype: torch.dtype, **changes: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(tiny_config(n_embd=64, n_head=2, dropout=0.2, **changes))
    if kernels == "native":
        use_native_blocks(model, Compute(CPU, dtype), read_settings())
    return model


def gradients(model: GPT, dtype: torch.dtype) -> tuple[dict[str, Tensor], int]:
    """Those of two passes, by the names of the parameters, and the numbers kept for the backward pass of the second."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    torch.manual_seed(1)
    for _ in range(2):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), Compute(CPU, dtype).autocast():
            loss = model(IDX).square().mean()
        loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}, sum(
        kept.values()
    )


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_the_same_to_the_last_bit_and_most_activations_are_not_kept(
    attention: str, dtype: torch.dtype
) -> None:
    """A copy of the model has gradients of its own."""
    model = model_of("torch", dtype, attention=attention)
    recomputing = copy.deepcopy(model)
    checkpoint_activations(recomputing)
    recomputing = copy.deepcopy(recomputing)
    (whole, kept), (recomputed, still_kept) = gradients(model, dtype), gradients(recomputing, dtype)
    assert same(whole, recomputed)
    assert still_kept < kept / 4


@needs_compiler
@pytest.mark.parametrize("dtype", sorted({torch.float32, NARROW}, key=str), ids=str)
def test_native_blocks_draw_the_same_dropout_again(dtype: torch.dtype) -> None:
    model, recomputing = (model_of("native", dtype, qk_norm=True, position="rope") for _ in range(2))
    checkpoint_activations(recomputing)
    (whole, kept), (recomputed, still_kept) = gradients(model, dtype), gradients(recomputing, dtype)
    assert same(whole, recomputed)
    assert still_kept < kept / 2


def test_a_run_learns_the_same_and_is_resumed_with_or_without(tmp_path: Path, start: Start) -> None:
    recipe, recomputing = ("model.dropout=0.2", "train.grad_accum_steps=2"), "train.activation_checkpointing=true"
    straight = start(tmp_path / "straight", *recipe)
    straight.run()
    other = start(tmp_path / "other", *recipe, recomputing, "run.name=whole")
    other.run()
    middle = tmp_path / "other" / "runs" / "whole" / "checkpoints" / "step-000003"
    resumed = start(tmp_path / "other", *recipe, "run.name=whole", resume=str(middle))
    assert resumed.state.step == 3
    resumed.run()
    for trainer in (other, resumed):
        assert same(weights(trainer.model), weights(straight.model))
    assert rows(tmp_path / "straight", "val/loss").keys() == {0, 3, 6}
