"""Predictions against the allocator, as torch's profiler reports it, and against a process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpt.accounting.machine import peak_memory_bytes
from gpt.accounting.memory import inference_memory, training_memory
from gpt.accounting.published import PUBLISHED
from gpt.cache.kv_cache import KVCache, cache_bytes
from gpt.cache.paged_store import KV_DTYPES
from gpt.config import ModelConfig, OptimConfig
from gpt.device import Compute
from gpt.model import GPT
from gpt.training.optimizers import CombinedOptimizer, build_optimizer
from gpt.training.step import Stepper
from patience import PATIENCE
from tiny import tiny_config

CPU = torch.device("cpu")
LLAMA = {"n_kv_head": 2, "mlp": "swiglu", "norm": "rmsnorm", "position": "rope", "tie_weights": False}
VARIANTS: dict[str, tuple[dict[str, object], torch.dtype, int, str]] = {
    "reference": ({"attention": "reference", "bias": True}, torch.float32, 1, "adamw"),
    "sdpa": ({"attention": "sdpa"}, torch.float32, 1, "adamw"),
    "dropout": ({"dropout": 0.1, "attention": "sdpa"}, torch.float32, 1, "adamw"),
    "bfloat16": ({"dropout": 0.1, "attention": "auto"}, torch.bfloat16, 1, "adamw"),
    "float16": ({"attention": "auto"}, torch.float16, 1, "adamw"),
    "llama bfloat16": (LLAMA | {"attention": "reference", "qk_norm": True}, torch.bfloat16, 1, "adamw"),
    "squared": ({"mlp": "relu2", "attention": "sdpa"}, torch.bfloat16, 1, "adamw"),
    "accumulation": ({"attention": "sdpa"}, torch.float32, 3, "adamw"),
    "muon": (LLAMA | {"qk_norm": True}, torch.float32, 1, "muon"),
}
BATCH, LENGTH = 4, 64


def building(name: str) -> Callable[[GPT], CombinedOptimizer]:
    return lambda model: build_optimizer(model, OptimConfig(name=name), CPU)


def config_of(**changes: object) -> ModelConfig:
    return tiny_config(n_embd=64, block_size=LENGTH, vocab_size=200, **changes)


def allocated_peak(work: Callable[[], object]) -> int:
    """Most bytes that some work had allocated at once, beyond what there was."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    assert profiled.profiler is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def held_by(model: GPT) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(("changes", "dtype", "micro_batches", "name"), VARIANTS.values(), ids=VARIANTS.keys())
def test_a_training_step_takes_what_was_predicted(
    changes: dict[str, object], dtype: torch.dtype, micro_batches: int, name: str
) -> None:
    config, compute = config_of(**changes), Compute(CPU, dtype)
    model = GPT(config)
    optimizer = building(name)(model)
    stepper = Stepper(model, optimizer, compute, grad_clip=1.0)
    # so small a batch peaks in the matmuls of Muon
    batch, length, tolerance = (1, 2, 0.05) if name == "muon" else (BATCH, LENGTH, 0.01)
    idx = torch.zeros(batch, length, dtype=torch.int64)
    batches = [(idx, idx)] * micro_batches
    while not all(part.state for part in optimizer.optimizers.values()):
        stepper.step(0, 1e-4, batches)  # makes the optimizer's state; the first ones of float16 may be left out
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


@pytest.mark.parametrize("changes", [{"attention": "reference"}, {"attention": "sdpa", "dropout": 0.1}, LLAMA], ids=str)
def test_prefill_and_decoding_take_what_was_predicted(changes: dict[str, object]) -> None:
    config = config_of(**changes)
    model, predictions = GPT(config).eval(), inference_memory(config, BATCH, LENGTH, CPU)
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
        assert predicted.prefill_peak - predicted.weights - predicted.cache == pytest.approx(prefill, rel=0.03)
        assert predicted.decode_peak == pytest.approx(held_by(model) + cache.nbytes + decode, rel=0.01)


def test_activations_of_one_matrix_product_by_hand() -> None:
    config = tiny_config(n_layer=1, n_head=1, n_embd=2, vocab_size=1000, mlp_width=1, block_size=1, attention="sdpa")
    memory = training_memory(config, 50, 1, Compute(CPU, torch.float32), building("adamw"))
    logits = 50 * 1000 * 4
    assert memory.activations == pytest.approx(logits, rel=0.05)  # their log-softmax; all else is 2 wide
    assert memory.weights == 4 * (1000 * 2 + 1 * 2 + 4 * 2 * 2 + 2 * 2 + 3 * 2)
    tensors = 2 + 4 + 2 + 3  # embeddings, attention, feed-forward, norms
    assert memory.optimizer == 2 * memory.weights + 4 * tensors


@pytest.mark.parametrize(("name", "batch"), [("gpt2", 8), ("llama-2-7b", 1)])
def test_a_large_model_is_predicted_quickly_and_without_memory(name: str, batch: int) -> None:
    config, before, start = PUBLISHED[name], peak_memory_bytes(CPU), time.process_time()
    memory = training_memory(config, batch, config.block_size, Compute(CPU, torch.bfloat16), building("adamw"))
    assert memory.peak > 15 << 30
    assert time.process_time() - start < 30  # of this process; 2 to 5 s
    assert peak_memory_bytes(CPU) - before < 200 << 20


GROWTH = """
import torch
from gpt.accounting.machine import peak_memory_bytes
from gpt.accounting.memory import training_memory
from gpt.config import ModelConfig, OptimConfig
from gpt.device import Compute
from gpt.model import GPT
from gpt.training.optimizers import build_optimizer
from gpt.training.step import Stepper
torch.set_num_threads(1)
cpu = torch.device("cpu")
config = ModelConfig(n_layer=4, n_head=4, n_embd=256, block_size=256, vocab_size=1000, attention="reference")
compute, model = Compute(cpu, torch.float32), GPT(config)
optimizer = build_optimizer(model, OptimConfig(), cpu)
stepper = Stepper(model, optimizer, compute, 1.0)
few, many = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(16, 256, dtype=torch.int64)
stepper.step(0, 1e-4, [(few, few)])
optimizer.zero_grad(set_to_none=True)
resident = int(open("/proc/self/statm").read().split()[1]) * 4096
stepper.step(1, 1e-4, [(many, many)])
predicted = training_memory(config, 16, 256, compute, lambda model: build_optimizer(model, OptimConfig(), cpu))
print((predicted.peak - predicted.persistent) / (peak_memory_bytes(cpu) - resident))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read the Linux way")
def test_a_process_grows_by_what_was_predicted() -> None:
    # the C library gives every freed block back, and none is counted that only waits to be used again
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    root, command = Path(__file__).parents[2], [sys.executable, "-c", GROWTH]
    printed = subprocess.check_output(command, cwd=root, env=environment, text=True, timeout=PATIENCE)
    assert float(printed) == pytest.approx(1, abs=0.1)  # 0.995 in each of three runs
