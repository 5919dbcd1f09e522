"""`scripts/bench.py train memory`: what `explain.py memory` predicts, against what the device's allocator counts."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cli_options import add_measurement, check_overrides
from benchmarks.measure import Row, describe, finish, make_table
from gpt.cli.command import report
from gpt.cli.tables import human_bytes
from gpt.config import Config
from gpt.config.loading import load_config
from gpt.environment import read_settings

if TYPE_CHECKING:
    import torch

    from gpt.data.dataset import Dataset
    from gpt.device import Compute
    from gpt.model import GPT
    from gpt.training.optimizers import CombinedOptimizer

LOWEST, HIGHEST = 0.8, 1.25
"""Of measured over predicted: kernels choose their own workspace, and the allocator rounds."""
NOTE = "Bytes at the peak of an eager training step, and of the prefill of a window into a cache of float32."
COLUMNS = {
    "predicted": lambda row: human_bytes(row["predicted"]),
    "measured": lambda row: human_bytes(row["measured"]),
    "ratio": lambda row: f"{row['measured'] / row['predicted']:.3f}",
}


def add_parsers(subparsers: Any) -> None:
    summary = "Compare the peak memory of a training step and of a prefill with what is predicted."
    example = "--config configs/shakespeare_gpu.yaml run.device=cuda"
    add_measurement(subparsers, "train memory", summary, example).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure both; return 1 where a ratio is out of bounds."""
    from gpt.corpora import prepare
    from gpt.device import choose_compute
    from gpt.training.plan import resolve

    check_overrides(arguments)
    loaded = load_config(Path(arguments.config), arguments.overrides)
    dataset = prepare(loaded.config.data, read_settings(), report)
    config, facts = resolve(loaded, dataset), describe("train memory", arguments, loaded.config.run)
    compute = choose_compute(config.run, report)
    name = str(compute.dtype).removeprefix("torch.")
    rows = {f"training step, {name}": of_training(config, compute, dataset)}
    rows[f"prefill of {config.train.batch_size}"] = of_prefill(config, compute)
    wrong = [what for what, row in rows.items() if not LOWEST <= row["measured"] / row["predicted"] <= HIGHEST]
    table = make_table(f"{arguments.config}: peak memory", rows, COLUMNS, NOTE)
    return finish(arguments, [table], {**facts, "rows": rows}, [f"not as predicted: {what}" for what in wrong])


def of_training(config: Config, compute: "Compute", dataset: "Dataset") -> Row:
    """Measure two steps: the second finds the optimizer's state."""
    from gpt.accounting.memory import training_memory
    from gpt.data.batches import BatchSampler
    from gpt.model import GPT
    from gpt.training.optimizers import build_optimizer
    from gpt.training.step import Stepper

    train, model = config.train, config.model

    def optimizer(model: "GPT") -> "CombinedOptimizer":
        return build_optimizer(model, config.optim, compute.device, compute.fast_dtype)

    predicted = training_memory(model, train.batch_size, model.block_size, compute, optimizer, train.grad_accum_steps)

    def work() -> None:
        trained = GPT(model).to(compute.device)
        stepper = Stepper(trained, optimizer(trained), compute, 0.0)
        sampler = BatchSampler(dataset.train, model.block_size, 0)
        for number in range(2):
            stepper.step(number, 1e-3, [sampler.get_batch(train.batch_size) for _ in range(train.grad_accum_steps)])

    return {"predicted": predicted.peak, "measured": peak_of(work, compute.device)}


def of_prefill(config: Config, compute: "Compute") -> Row:
    """Measure the prefill of a whole window into a float32 cache."""
    import torch

    from gpt.accounting.memory import inference_memory
    from gpt.cache import KVCache
    from gpt.model import GPT

    model, batch = config.model, config.train.batch_size
    predicted = inference_memory(model, batch, model.block_size, compute.device)["fp32"]

    @torch.no_grad()
    def work() -> None:
        decoder = GPT(model).eval().to(compute.device)
        cache = KVCache(model, batch, device=compute.device)
        decoder(torch.zeros(batch, model.block_size, dtype=torch.int64, device=compute.device), cache=cache)

    return {"predicted": predicted.prefill_peak, "measured": peak_of(work, compute.device)}


def peak_of(work: Callable[[], None], device: "torch.device") -> int:
    """Return the most bytes on the device while `work` runs, of those that it allocated itself."""
    import torch

    from gpt.accounting.allocations import AllocationMode

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
