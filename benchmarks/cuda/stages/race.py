"""nanoGPT's recipe for a GPU, by nanoGPT and by this package, as whole processes."""

import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.training_runs import CONFIGS, Run, open_data, train_ours
from benchmarks.cuda.workload import Workload
from benchmarks.nanogpt import load_nanogpt, prepare_nanogpt
from benchmarks.processes import Line, time_process
from benchmarks.training_runs import NANOGPT_CONFIG, loss_of
from gpt.accounting.flops import training_flops
from gpt.accounting.machine import measure_matmul_rate
from gpt.config import Config, load_config
from gpt.data import Dataset
from gpt.errors import GPTError

RECIPE = CONFIGS / "shakespeare_baby_gpt.yaml"
EVALUATION = re.compile(r"^step (\d+): train loss [\d.]+, val loss ([\d.]+)")
ITERATION = re.compile(r"^iter (\d+): loss [\d.]+, time ([\d.]+)ms")


def run(workload: Workload) -> StageResult:
    """Train with both from cold caches of compiled code; the target is nanoGPT's best loss."""
    dataset, config = open_data(workload), load_config(RECIPE, [*workload.data, *workload.overrides]).config
    runs: dict[str, Run] = {}
    problems = []
    with tempfile.TemporaryDirectory(prefix="gpt-cuda-") as folder:
        runs["gpt"] = train_ours(RECIPE, workload, dataset, Path(folder) / "gpt")
        if workload.nanogpt is not None:
            try:
                runs["nanoGPT"] = train_nanogpt(workload.nanogpt, workload, dataset, Path(folder))
            except GPTError as error:  # what ours did is kept
                problems.append(f"nanoGPT: {error}")
    rate = measure_matmul_rate(torch.device(workload.device), torch.bfloat16, workload.matmul_size)
    goal = min(loss for _, loss in runs.get("nanoGPT", runs["gpt"]).evaluations)
    rows = [(name, *cells(one, goal, utilization(one, config, dataset, rate))) for name, one in runs.items()]
    if workload.nanogpt is None:
        rows.append(("nanoGPT, not run: no NANOGPT=PATH", *"------"))
    header = ("trainer", "s", f"s to {goal:.4f}", "own best loss", "loss, same evaluation", "tokens/s", "MFU")
    facts = {name: asdict(one) for name, one in runs.items()} | {"goal": goal, "bfloat16_matmul_rate": rate}
    title = (
        "nanoGPT's GPU recipe, losses in nats per token; the target is nanoGPT's best estimate, or ours without nanoGPT"
    )
    return StageResult(title, header, rows, facts, problems)


def cells(one: Run, goal: float, mfu: float) -> tuple[str, ...]:
    """Return the cells of a row after its name."""
    reached = one.seconds_to(goal)
    own = min(loss for _, loss in one.evaluations)
    shown = "never" if reached is None else f"{reached:.1f}"
    return f"{one.seconds:.1f}", shown, f"{own:.4f}", f"{one.loss:.4f}", f"{one.tokens_per_second:,.0f}", f"{mfu:.1%}"


def utilization(one: Run, config: Config, dataset: Dataset, rate: float) -> float:
    """Return model FLOPs per second over those of a square matmul in bfloat16 (2204.02311, appendix B)."""
    model = config.model.model_copy(update={"vocab_size": dataset.tokenizer.vocab_size})
    return training_flops(model, 1, model.block_size) / model.block_size * one.tokens_per_second / rate


def train_nanogpt(checkout: Path, workload: Workload, dataset: Dataset, folder: Path) -> Run:
    """Run its train.py with its own configuration for a GPU, in a copy of the checkout.

    Raises:
        GPTError: it fails, or prepares other tokens.
    """
    place = prepare_nanogpt(checkout, dataset, folder)
    command = [sys.executable, "train.py", NANOGPT_CONFIG, *workload.nanogpt_options]
    seconds, lines = time_process(command, folder / "nanogpt-caches", place)
    model = load_nanogpt(place)
    loss = loss_of(model, dataset, model.block_size, workload.device)
    return read_log(seconds, lines, loss, tokens_per_iteration(lines))


def tokens_per_iteration(lines: Sequence[Line]) -> int:
    """Read the tokens per iteration from the line that says them."""
    found = (re.match(r"tokens per iteration will be: ([\d,]+)", line.text) for line in lines)
    return next(int(match.group(1).replace(",", "")) for match in found if match)


def read_log(seconds: float, lines: Sequence[Line], loss: float, tokens: int) -> Run:
    """Read its evaluations and its speed from what it prints; an iteration after an evaluation includes its time."""
    evaluations, milliseconds = [], []
    for line in lines:
        if match := EVALUATION.match(line.text):
            evaluations.append((line.seconds, float(match.group(2))))
        elif match := ITERATION.match(line.text):
            milliseconds.append(float(match.group(2)))
    return Run(seconds, evaluations, tokens / statistics.median(milliseconds) * 1000, loss)
