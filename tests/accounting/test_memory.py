"""Predictions of memory against the allocator, as torch's profiler reports it."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpt.config import ModelConfig, OptimConfig
from gpt.data.batches import StepBatch
from gpt.extras.accounting.memory import inference_memory, training_memory
from gpt.generation.kv_cache import KV_DTYPES, KVCache, cache_bytes
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.training.optimizers import CombinedOptimizer, build_optimizer
from gpt.training.step import Stepper
from tiny import tiny_config

CPU = torch.device("cpu")
LLAMA = {
    "n_kv_head": 2,
    "mlp": "swiglu",
    "norm": "rmsnorm",
    "position": "rope",
    "tie_weights": False,
}
VARIANTS: dict[str, tuple[dict[str, object], torch.dtype, int, str]] = {
    "reference": ({"attention": "reference", "bias": True}, torch.float32, 1, "adamw"),
    "sdpa": ({"attention": "sdpa"}, torch.float32, 1, "adamw"),
    "dropout": ({"dropout": 0.1, "attention": "sdpa"}, torch.float32, 1, "adamw"),
    "bfloat16": ({"dropout": 0.1, "attention": "auto"}, torch.bfloat16, 1, "adamw"),
    "float16": ({"attention": "auto"}, torch.float16, 1, "adamw"),
    "llama bfloat16": (
        LLAMA | {"attention": "reference", "qk_norm": True},
        torch.bfloat16,
        1,
        "adamw",
    ),
    "squared": ({"mlp": "relu2", "attention": "sdpa"}, torch.bfloat16, 1, "adamw"),
    "accumulation": ({"attention": "sdpa"}, torch.float32, 3, "adamw"),
    "muon": (LLAMA | {"qk_norm": True}, torch.float32, 1, "muon"),
}
BATCH = 4
LENGTH = 64


def building(name: str) -> Callable[[GPT], CombinedOptimizer]:
    return lambda model: build_optimizer(model, OptimConfig(name=name), CPU)


def config_of(**changes: object) -> ModelConfig:
    return tiny_config(n_embd=64, block_size=LENGTH, vocab_size=200, **changes)


def allocated_peak(work: Callable[[], object]) -> int:
    """Most bytes that some work had allocated at once, beyond what there was."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    assert profiled.profiler is not None
    events = [
        event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def held_by(model: GPT) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(
    ("changes", "dtype", "micro_batches", "name"), VARIANTS.values(), ids=VARIANTS.keys()
)
def test_training_step_takes_what_was_predicted(
    changes: dict[str, object], dtype: torch.dtype, micro_batches: int, name: str
) -> None:
    config = config_of(**changes)
    compute = Compute(CPU, dtype)
    model = GPT(config)
    optimizer = building(name)(model)
    stepper = Stepper(model, optimizer, compute, grad_clip=1.0)
    # so small a batch peaks in the matmuls of Muon
    batch, length, tolerance = (1, 2, 0.05) if name == "muon" else (BATCH, LENGTH, 0.01)
    idx = torch.zeros(batch, length, dtype=torch.int64)
    batches = [StepBatch(idx, idx)] * micro_batches
    while not all(part.state for part in optimizer.optimizers.values()):
        # A step makes the optimizer's state; the first steps of float16 may be left out.
        stepper.step(0, 1e-4, batches)
    optimizer.zero_grad(set_to_none=True)
    states = [values for part in optimizer.optimizers.values() for values in part.state.values()]
    state = sum(tensor.nbytes for values in states for tensor in values.values())

    predicted = training_memory(config, batch, length, compute, building(name), micro_batches)
    assert predicted.weights + predicted.buffers == held_by(model)
    assert predicted.optimizer == state
    assert predicted.gradients == predicted.weights
    measured = allocated_peak(lambda: stepper.step(1, 1e-4, batches))
    assert predicted.peak == pytest.approx(held_by(model) + state + measured, rel=tolerance)
    assert predicted.peak - predicted.persistent == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(
    "changes", [{"attention": "reference"}, {"attention": "sdpa", "dropout": 0.1}, LLAMA], ids=str
)
def test_prefill_and_decoding_take_what_was_predicted(changes: dict[str, object]) -> None:
    config = config_of(**changes)
    model = GPT(config).eval()
    predictions = inference_memory(config, BATCH, LENGTH, CPU)
    idx = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    assert set(predictions) == set(KV_DTYPES)
    for kind, predicted in predictions.items():
        assert predicted.weights == held_by(model)
        assert predicted.cache == cache_bytes(config, BATCH, LENGTH, kind)
        cache = KVCache(config, BATCH, kv_dtype=kind)
        with torch.no_grad():
            prefill = allocated_peak(lambda cache=cache: model(idx, cache=cache))
            cache.truncate(LENGTH - 1)
            decode = allocated_peak(lambda cache=cache: model(idx[:, -1:], cache=cache))
        assert predicted.prefill_peak - predicted.weights - predicted.cache == pytest.approx(
            prefill, rel=0.03
        )
        assert predicted.decode_peak == pytest.approx(
            held_by(model) + cache.nbytes + decode, rel=0.01
        )
