"""Edits of the model that native blocks do not make: each is noticed, and named, before training."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_support import needs_compiler
from torch import Tensor, nn

from gpt.device import Compute
from gpt.environment import read_settings
from gpt.errors import DeviceError
from gpt.kernels.training.block import NativeBlock, use_native_blocks
from gpt.model import GPT
from gpt.model.attention import ReferenceCore, SDPACore
from gpt.model.gpt import Block
from gpt.processor import supported_processors
from planted_edits import EDITS
from tiny import tiny_config

DTYPES = sorted({processor.matmul_dtype for processor in supported_processors()}, key=str)


def compute(dtype: torch.dtype) -> Compute:
    return Compute(torch.device("cpu"), dtype)


def build(**changes: Any) -> GPT:
    """As a recipe begins, with projections and convolutions of zeros."""
    torch.manual_seed(0)
    recipe = {"norm": "rmsnorm", "position": "rope", "qk_norm": True, "mlp_conv": 4, "init": "zero_projections"}
    return GPT(tiny_config(**{"n_embd": 64, "n_head": 2, "block_size": 72, **recipe, **changes}))


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_named_and_the_model_left_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    EDITS[name](monkeypatch)
    model = build()
    where = "the gradient of wte.weight" if name == "no gradient into attention" else "block 0's output"
    with pytest.raises(DeviceError, match=rf"^{where} differs by [0-9.e-]+ from that of [^\n]*gpt/model"):
        use_native_blocks(model, compute(dtype), read_settings())
    assert [type(block) for block in model.h] == [Block, Block]


PLAIN = {"norm": "layernorm", "position": "learned", "qk_norm": False}


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("changes", [{"dropout": 0.2}, {"dropout": 0.0, "attention_dropout": 0.3, **PLAIN}], ids=str)
def test_with_dropout_the_masks_are_the_same(changes: dict[str, Any], dtype: torch.dtype) -> None:
    model, before = build(**changes), torch.get_rng_state()
    use_native_blocks(model, compute(dtype), read_settings())
    assert all(isinstance(block, NativeBlock) for block in model.h)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@needs_compiler
def test_a_dropout_that_was_taken_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for core in (ReferenceCore, SDPACore):
        monkeypatch.setattr(core, "__init__", lambda self, dropout, plain=core.__init__: plain(self, 0.0))
    with pytest.raises(DeviceError, match=r"^block 0's output differs by "):
        use_native_blocks(build(dropout=0.1), compute(torch.float32), read_settings())


@needs_compiler
def test_what_the_native_blocks_cannot_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Block.forward

    def forward(self: Any, x: Tensor, rotation: Any, mask: Any, cache: Any = None, scale: float = 1.0) -> Tensor:
        return plain(self, x * scale, rotation, mask, cache)

    monkeypatch.setattr(Block, "forward", forward)
    monkeypatch.setattr(Block, "__call__", lambda self, *parts: nn.Module.__call__(self, *parts, scale=1.0))
    with pytest.raises(DeviceError, match=r"^the native blocks cannot run this model \(.*scale.*\)$"):
        use_native_blocks(build(), compute(torch.float32), read_settings())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda h: h.__setitem__(1, type("Mine", (Block,), {})(build().config)), "blocks of class Mine"),
        (lambda h: setattr(h[0], "sink", nn.Parameter(torch.zeros(2))), "h.0.sink of shape (2,)"),
        (lambda h: setattr(h[0].mlp, "c_fc", nn.Linear(64, 512, bias=False)), "h.0.mlp.c_fc.weight of shape (512, 64)"),
        (lambda h: h[1].mlp.register_forward_hook(lambda module, args, y: 2 * y), "hooks, and h.1.mlp has one"),
    ],
    ids=["class", "parameter", "width", "hook"],
)
def test_a_model_with_other_modules_is_not_covered(change: Callable[[Any], object], what: str) -> None:
    model = build()
    change(model.h)
    with pytest.raises(DeviceError) as caught:
        use_native_blocks(model, compute(torch.float32), read_settings())
    assert str(caught.value) == f"the native kernels do not cover {what}"


@needs_compiler
def test_hooks_that_come_later_are_called() -> None:
    model = build()
    use_native_blocks(model, compute(torch.float32), read_settings())
    shapes: list[torch.Size] = []
    model.h[0].attn.register_forward_hook(lambda module, args, y: shapes.append(y.shape))
    model(torch.zeros(1, 9, dtype=torch.int64))
    assert shapes == [(1, 9, 64)]
