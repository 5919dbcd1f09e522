"""Which steps a CUDA graph can replay, and what it reads; `tests/cuda` replays them on a device."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from gpt.config import Config, OptimConfig
from gpt.data.batches import StepBatch
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.environment import Launch
from gpt.system.errors import DeviceError
from gpt.training.callbacks import Callback
from gpt.training.graphed_step import GraphedStepper, StaticInputs, can_capture
from gpt.training.objective import Objective
from gpt.training.optimizers import build_optimizer
from gpt.training.step import StepInputs
from tiny import tiny_config

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
BATCH = StepBatch(torch.zeros(4, 16, dtype=torch.int64), torch.ones(4, 16, dtype=torch.int64))


class Observer(Callback):
    only_observes = True


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"callbacks": [Observer()]}, True),
        ({"callbacks": [Observer(), Callback()]}, False),
        ({"compute": Compute(CPU, torch.bfloat16)}, False),
        ({"compute": Compute(CUDA, torch.float16)}, False),
        ({"world": World(Launch(rank=0, size=2))}, False),
        ({"config": Config.model_validate({"run": {"kernels": "torch"}})}, False),
    ],
)
def test_steps_without_python_are_captured(changes: dict[str, Any], expected: bool) -> None:
    plain = {
        "config": Config(),
        "compute": Compute(CUDA, torch.bfloat16),
        "world": World(),
        "callbacks": [],
    }
    assert can_capture(**{**plain, **changes}) is expected


def inputs_of(step: int, mtp_scale: float | None) -> StepInputs:
    batch = BATCH.map(lambda tensor: tensor + step)
    return StepInputs(step, 64.0 + step, mtp_scale, [0.5 * step, 0.25 * step], [batch])


@pytest.mark.parametrize("mtp_scale", [None, 0.75])
def test_static_inputs_take_new_values_at_the_same_addresses(mtp_scale: float | None) -> None:
    static = StaticInputs.allocate(inputs_of(1, mtp_scale), CPU)
    tensors = [
        static.step,
        static.num_tokens,
        *static.learning_rates,
        *static.micro_batches[0].tensors,
    ]
    if static.mtp_scale is not None:
        tensors.append(static.mtp_scale)
    addresses = [tensor.data_ptr() for tensor in tensors]
    # The first whole number that float32 cannot hold.
    late = inputs_of(2**24 + 1, None if mtp_scale is None else 0.5)
    static.copy_from(late)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert static.step.item() == 2**24 + 1
    assert static.num_tokens.item() == torch.tensor(late.num_tokens).item()
    assert [rate.item() for rate in static.learning_rates] == [
        torch.tensor(rate).item() for rate in late.learning_rates
    ]
    assert all(map(torch.equal, static.micro_batches[0].tensors, late.micro_batches[0].tensors))
    if static.mtp_scale is not None:
        assert static.mtp_scale.item() == 0.5


@contextmanager
def closed_by_an_error(*_: Any, **__: Any) -> Iterator[None]:
    """End a capture as torch does after an error in it: by another one, which says nothing."""
    try:
        yield
    finally:
        raise torch.AcceleratorError("the capture is not valid")


class RefusedInCapture(Objective):
    """Raises an error from the second call on, the first of a capture."""

    calls = 0

    def __call__(self, *arguments: Any) -> Any:
        RefusedInCapture.calls += 1
        if RefusedInCapture.calls > 1:
            raise torch.AcceleratorError("not permitted\nand more")
        return super().__call__(*arguments)


def test_failed_capture_says_why_and_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("graph_pool_handle", "CUDAGraph", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", closed_by_an_error)
    monkeypatch.setattr(RefusedInCapture, "calls", 0)
    model = GPT(tiny_config(n_layer=1, n_embd=16, n_head=2))
    optimizer = build_optimizer(model, OptimConfig(), CPU)
    compute = Compute(CPU, torch.float32)
    stepper = GraphedStepper(model, optimizer, compute, 1.0, RefusedInCapture())
    stepper.step(0, 1e-2, [BATCH])
    settings = [dict(group) for group in optimizer.param_groups]
    refusal = r"^no CUDA graph of a step: not permitted; set run\.kernels=torch$"
    with pytest.raises(DeviceError, match=refusal):
        stepper.step(1, 1e-2, [BATCH])
    assert [dict(group) for group in optimizer.param_groups] == settings
