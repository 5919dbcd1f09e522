"""What a caller has set for all of torch changes no training, or the training is refused."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt
from tiny import CORPUS


def float64() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    return stack


def train(folder: Path) -> list[Any]:
    """The losses of a tiny run, its weights as loaded, and a text."""
    small = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "position": "rope", "qk_norm": True}
    run = gpt.train(
        text=CORPUS * 30, name=None, model=small, max_steps=4, eval_interval=2, batch_size=2,
        warmup_steps=1, device="cpu", compile=False, dtype="float32", config={}, sample_tokens=5, report=None,
        run={"dir": str(folder)},
    )  # fmt: skip
    weights = {**dict(run.model.named_buffers()), **dict(run.model.named_parameters())}
    assert not any(weight.is_inference() for weight in weights.values())
    losses = [row["val/loss"] for row in run.metrics if "val/loss" in row]
    return [losses, run.evaluate()["loss"], weights, run.sample("the")]


@pytest.mark.parametrize("setting", [float64, torch.no_grad, torch.inference_mode], ids=lambda each: each.__name__)
def test_no_setting_of_torch_changes_a_run(
    setting: Callable[[], AbstractContextManager[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = train(tmp_path / "plain")
    with setting():
        found = train(tmp_path / "set")
    torch.testing.assert_close(found[2], expected[2], rtol=0, atol=0)
    assert (found[:2], found[3]) == (expected[:2], expected[3])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (torch.autocast("cpu", torch.bfloat16), r"torch\.autocast; leave it before"),
        (torch.device("meta"), "default device is not the CPU; set it back"),  # in place of cuda
    ],
)
def test_a_training_is_refused_where_torch_computes_elsewhere_or_in_another_type(
    setting: Any, message: str, tmp_path: Path
) -> None:
    with setting, pytest.raises(gpt.GPTError, match=message):
        train(tmp_path)
