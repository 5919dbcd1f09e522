"""What `run.deterministic` asks of CUDA: no operation that it refuses then, in a run or in any choice of one."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fake_cuda.device import FakeCuda
from fake_cuda.refusals import NAMES
from fake_cuda.setting import configured
from gpt.config import OptimConfig, SamplingParams
from gpt.device import Compute
from gpt.environment import read_settings
from gpt.evaluation.loss import evaluate
from gpt.generation import Batch, DecodeOptions, build_runtime
from gpt.model import GPT
from gpt.training.objective import Distillation, TaughtBatch, cross_entropy
from gpt.training.optimizers import build_optimizer
from gpt.training.setup import open_session
from gpt.training.step import NonFiniteGuard, Stepper
from tiny import tiny_config
from variants import VARIANTS, keys_of

DEVICE = torch.device("cuda:0")
FILTERS = {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
IDX = torch.arange(32).view(2, 16) % 23
BATCHES = ((IDX, IDX), TaughtBatch(IDX, IDX, torch.full((2, 16, 23), 1 / 23)))
OBJECTIVES = (cross_entropy, Distillation(0.5))


def run(device: FakeCuda) -> dict[str, Any]:
    """A run to its end, with evaluations and samples."""
    sampling = [f"sample.{name}={value}" for name, value in FILTERS.items()]
    options = ("run.deterministic=true", "model.dropout=0.1", "optim.name=muon", "optim.ema_decay=0.9", *sampling)
    state = open_session(configured(*options), read_settings(), print).run()
    return {"evaluated": state.evaluated_step, "flag": torch.are_deterministic_algorithms_enabled()}


def variant(changes: dict[str, Any], optimizer: str, number: int) -> None:
    """A step, an evaluation and tokens of a model."""
    model = GPT(tiny_config(n_layer=1, dropout=0.1, **changes)).to(DEVICE)
    dtype = (torch.float32, torch.bfloat16, torch.float16)[number % 3]
    compute = Compute(DEVICE, dtype, torch.bfloat16)
    optim = build_optimizer(model, OptimConfig.model_validate({"name": optimizer}), DEVICE, torch.bfloat16)
    stepper = Stepper(model, optim, compute, 1.0, objective=OBJECTIVES[number % 2])
    stepper.step(0, 1e-3, [BATCHES[number % 2]])
    evaluate(model, iter([(IDX, IDX)]), compute)
    runtime = build_runtime(model.eval(), DecodeOptions(("eager", "compiled")[number % 2]))
    batch = Batch(runtime, [[1], [2, 3]], SamplingParams(logprobs=2, **FILTERS), [0, 1])
    for _ in range(3):
        batch.step()


def variants(device: FakeCuda) -> dict[str, Any]:
    """Every choice of the architecture, with each optimizer."""
    for number, values in enumerate(VARIANTS):
        variant(keys_of(values), ("adamw", "muon")[number // 2 % 2], number)
    return {"steps": len(VARIANTS)}


def planted(device: FakeCuda) -> dict[str, Any]:
    """A float cumsum in the step, which CUDA refuses."""
    observe = NonFiniteGuard.observe

    def summing(guard: NonFiniteGuard, step: int, loss: Tensor, norm: Tensor) -> Tensor:
        return observe(guard, step, loss.view(1).cumsum(0)[0], norm)

    with mock.patch.object(NonFiniteGuard, "observe", summing):
        variant({}, "adamw", 0)
    return {}


SCENARIOS: dict[str, Callable[[FakeCuda], dict[str, Any]]] = {
    "run": run,
    "variants": variants,
    "planted": planted,
    "names": lambda device: {"names": NAMES},
}
"""By name, in the order in which they run: the first sets torch's flag, for the others too."""
