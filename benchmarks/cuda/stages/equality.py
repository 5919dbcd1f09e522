"""The device compared with the CPU: losses of the first steps in float32, and greedy texts."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.training_runs import CONFIGS, open_data
from benchmarks.cuda.workload import Workload
from gpt.checkpoint import load_trained
from gpt.cli.command import report
from gpt.config import SamplingParams, load_config
from gpt.data import Dataset
from gpt.environment import read_settings
from gpt.generation import Completion, DecodeOptions, build_runtime, complete
from gpt.training.setup import open_session

TOLERANCES = {"shakespeare_nanogpt_cpu": 2e-4, "shakespeare": 3e-2}
"""Largest difference of a loss, in nats, over the compared steps: AdamW's differences are those of float32 sums, which
grow from step to step; Muon's updates are rounded to bfloat16 on the way."""
CLOSE = 1e-3
"""Log-probabilities nearer than that are a tie, which rounding decides."""


def run(workload: Workload) -> StageResult:
    """Compare; a difference beyond the tolerance is a problem."""
    rows: list[tuple[str, ...]] = []
    facts: dict[str, Any] = {}
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpt-cuda-") as folder:
        for recipe, tolerance in TOLERANCES.items():
            ours, theirs = (train(recipe, device, workload, Path(folder)) for device in ("cpu", workload.device))
            largest = largest_difference(ours, theirs)
            rows.append(
                (f"{recipe}: largest difference of {len(ours)} losses, nats", f"{largest:.2e}", f"{tolerance:.0e}")
            )
            facts[recipe] = {"cpu": ours, "device": theirs}
            if not largest <= tolerance:
                problems.append(f"{recipe}: losses differ by {largest:.2e} nats, more than {tolerance:.0e}")
        for backend in workload.backends:
            texts = compare_texts(Path(folder), workload, backend)
            equal = sum(text["equal"] for text in texts)
            rows.append((f"greedy texts, {backend}, that are equal", f"{equal} of {len(texts)}", "all but ties"))
            facts[f"greedy, {backend}"] = texts
            problems += [f"{backend}: {text['reason']}" for text in texts if not text["close"]]
    header = ("device compared with CPU", "measured", "tolerance")
    return StageResult("Equality with the CPU, float32", header, rows, facts, problems)


def train(recipe: str, device: str, workload: Workload, folder: Path) -> list[float]:
    """Return the loss of each of the first steps on a device; the run stays in the folder."""
    name, steps = f"{recipe}-{device}", workload.equality_steps
    loaded = load_config(
        CONFIGS / f"{recipe}.yaml",
        [
            *(*workload.data, *workload.overrides, f"run.device={device}", f"run.dir={folder}", f"run.name={name}"),
            *("run.dtype=float32", "run.compile=false", "run.kernels=torch", "train.sample_tokens=0"),
            *(f"train.max_steps={steps}", f"train.eval_interval={steps}", "train.log_interval=1"),
            *("train.eval_first=false", "train.teacher_share=null", "optim.warmup_steps=2", "optim.decay_steps=null"),
        ],
    )
    if not (folder / name).exists():  # on a CPU alone, both are one
        open_session(loaded, read_settings(), report).run()
    rows = (json.loads(line) for line in (folder / name / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference of two sequences of numbers of one length."""
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def compare_texts(folder: Path, workload: Workload, backend: str) -> list[dict[str, Any]]:
    """Compare greedy texts of the model that the CPU trained: there, eagerly, and on the device by a backend."""
    prompts = _prompts(open_data(workload))
    params = SamplingParams(temperature=0, max_new_tokens=workload.greedy_tokens, logprobs=2)
    completions = []
    for device, kind in (("cpu", "eager"), (workload.device, backend)):
        loaded = load_trained(folder / "shakespeare-cpu", folder, torch.device(device))
        runtime = build_runtime(loaded.model, DecodeOptions(kind))
        completions.append(complete(loaded.model, loaded.tokenizer, prompts, params, runtime=runtime))
    return [compare(one, other) for one, other in zip(*completions, strict=True)]


def compare(ours: Completion, theirs: Completion) -> dict[str, Any]:
    """Return whether two texts are equal, or differ first where the best two tokens were nearly as likely."""
    pairs = zip(ours.tokens, theirs.tokens, strict=True)
    place = next((i for i, (one, other) in enumerate(pairs) if one.id != other.id), None)
    if place is None:
        return {"equal": True, "close": True, "reason": ""}
    (_, best), (_, second) = ours.tokens[place].top[:2]
    lead = f"the best token leads by {best - second:.1e} nats"
    reason = f"the text after {ours.prompt!r} differs at token {place}, where {lead}"
    return {"equal": False, "close": best - second < CLOSE, "reason": reason}


def _prompts(dataset: Dataset, count: int = 4, length: int = 16) -> list[str]:
    """Return pieces of the validation split, evenly spaced."""
    step = (len(dataset.val) - length) // count
    return [dataset.tokenizer.decode(dataset.val[i * step : i * step + length]) for i in range(count)]
