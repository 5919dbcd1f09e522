"""Our recipes as whole training processes: seconds, loss, throughput."""

import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.training_runs import CONFIGS, Run, open_data, train_ours
from benchmarks.cuda.workload import Workload
from gpt.cli.tables import human_bytes

RECIPES = ("shakespeare", "shakespeare_gpu")


def run(workload: Workload) -> StageResult:
    """Train each once, from cold caches of compiled code."""
    dataset, runs = open_data(workload), {}
    for name in RECIPES:
        with tempfile.TemporaryDirectory(prefix="gpt-cuda-") as folder:
            runs[name] = train_ours(CONFIGS / f"{name}.yaml", workload, dataset, Path(folder))
    rows = [(name, *_cells(one)) for name, one in runs.items()]
    facts = {name: asdict(one) for name, one in runs.items()}
    header = ("recipe", "s, whole process", "loss, nats per token", "tokens/s", "peak memory")
    return StageResult("Recipes, the loss over the whole validation split", header, rows, facts)


def _cells(one: Run) -> tuple[str, ...]:
    peak = "-" if one.peak_bytes is None else human_bytes(one.peak_bytes)
    return f"{one.seconds:.1f}", f"{one.loss:.4f}", f"{one.tokens_per_second:,.0f}", peak
