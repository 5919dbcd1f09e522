"""Memory that `explain.py memory` predicts, against what the device's allocator counts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.training_runs import CONFIGS, open_data
from benchmarks.cuda.workload import Workload
from gpt.accounting.allocations import AllocationMode
from gpt.accounting.memory import inference_memory, training_memory
from gpt.cache import KVCache
from gpt.cli.command import report
from gpt.cli.tables import human_bytes
from gpt.config import Config, load_config
from gpt.data import Dataset
from gpt.data.batches import BatchSampler
from gpt.device import Compute, choose_compute
from gpt.model import GPT
from gpt.training.optimizers import CombinedOptimizer, build_optimizer
from gpt.training.plan import resolve
from gpt.training.step import Stepper

RECIPES = ("shakespeare", "shakespeare_baby_gpt", "shakespeare_gpu")
LOWEST, HIGHEST = 0.8, 1.25
"""Of measured over predicted: kernels choose their own workspace, and the allocator rounds."""


@dataclass(frozen=True)
class Pair:
    """Bytes at the peak of the same work."""

    what: str
    predicted: int
    measured: int

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


def run(workload: Workload) -> StageResult:
    """Measure an eager training step and a prefill of each recipe; a ratio out of bounds is a problem."""
    pairs = []
    dataset = open_data(workload)
    for name in RECIPES:
        loaded = load_config(
            CONFIGS / f"{name}.yaml", [*workload.data, *workload.overrides, f"run.device={workload.device}"]
        )
        config = resolve(loaded, dataset)
        compute = choose_compute(config.run, report)
        pairs.append(training_pair(name, config, compute, dataset))
        pairs.append(prefill_pair(name, config, compute))
    rows = [(p.what, human_bytes(p.predicted), human_bytes(p.measured), f"{p.ratio:.3f}") for p in pairs]
    problems = [
        f"{p.what}: measured {p.ratio:.2f} times what was predicted" for p in pairs if not LOWEST <= p.ratio <= HIGHEST
    ]
    facts = {p.what: {"predicted": p.predicted, "measured": p.measured} for p in pairs}
    return StageResult("Peak memory", ("work", "predicted", "measured", "ratio"), rows, facts, problems)


def training_pair(name: str, config: Config, compute: Compute, dataset: Dataset) -> Pair:
    """Measure two steps: the second finds the optimizer's state."""
    train, model = config.train, config.model

    def optimizer(model: GPT) -> CombinedOptimizer:
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    predicted = training_memory(model, train.batch_size, model.block_size, compute, optimizer, train.grad_accum_steps)

    def work() -> None:
        trained = GPT(model).to(compute.device)
        stepper = Stepper(trained, optimizer(trained), compute, 0.0)
        sampler = BatchSampler(dataset.train, model.block_size, 0)
        for number in range(2):
            stepper.step(number, 1e-3, [sampler.get_batch(train.batch_size) for _ in range(train.grad_accum_steps)])

    what = f"{name}: training step, {str(compute.dtype).removeprefix('torch.')}"
    return Pair(what, predicted.peak, peak_of(work, compute.device))


def prefill_pair(name: str, config: Config, compute: Compute) -> Pair:
    """Measure the prefill of a whole window into a float32 cache."""
    model, batch = config.model, config.train.batch_size
    predicted = inference_memory(model, batch, model.block_size, compute.device)["fp32"]

    @torch.no_grad()
    def work() -> None:
        decoder = GPT(model).eval().to(compute.device)
        cache = KVCache(model, batch, device=compute.device)
        decoder(torch.zeros(batch, model.block_size, dtype=torch.int64, device=compute.device), cache=cache)

    return Pair(f"{name}: prefill of {batch}", predicted.prefill_peak, peak_of(work, compute.device))


def peak_of(work: Callable[[], None], device: torch.device) -> int:
    """Return the most bytes on the device while `work` runs, of those that it allocated itself."""
    if device.type != "cuda":
        with AllocationMode() as allocations:
            work()
        return allocations.peak
    for dtype in (torch.float32, torch.bfloat16):
        torch.mm(*torch.ones(2, 256, 256, dtype=dtype, device=device))  # cuBLAS takes its workspace once, and keeps it
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before
