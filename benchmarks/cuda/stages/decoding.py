"""Tokens per second by backend and batch, beside Hugging Face, on the same random weights in float32."""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.cuda.stage_result import StageResult
from benchmarks.cuda.workload import Workload
from benchmarks.decoders import Subject, from_shape, ours
from benchmarks.hugging_face import hugging_face
from benchmarks.measure import interleave
from gpt.config import ModelConfig, SamplingParams
from gpt.progress import silent

PROMPT = 16
Decode = Callable[[Tensor, SamplingParams], object]


def run(workload: Workload) -> StageResult:
    """Measure our backends and Hugging Face in interleaved rounds, for each shape and batch."""
    rows, facts = [], {}
    for shape in workload.shapes:
        subject = from_shape(shape, config_of(shape, workload.window), PROMPT)
        entrants = entrants_of(subject, workload)
        for batch in workload.batches:
            measured = measure(entrants, subject, batch, workload)
            rates = {name: statistics.median(values) for name, values in measured.items()}
            facts[f"{shape}, batch {batch}"] = rates
            rows.append((f"{shape}, {batch}", *(f"{rate:,.0f}" for rate in rates.values())))
    problems = [] if find_spec("transformers") else ["transformers is not installed: no peer was measured"]
    sizes = f"{workload.tokens} tokens after a prompt of {PROMPT}"
    title = f"Decoding {sizes}, float32, tokens/s of all sequences, median of {workload.rounds} rounds"
    return StageResult(title, ("shape, batch", *entrants), rows, facts, problems)


def config_of(shape: str, window: int) -> ModelConfig:
    """Return GPT-2's architecture in the shape L/H/C."""
    layers, heads, width = (int(part) for part in shape.split("/"))
    return ModelConfig(n_layer=layers, n_head=heads, n_embd=width, block_size=window, vocab_size=65)


def entrants_of(subject: Subject, workload: Workload) -> dict[str, Decode]:
    """Return our backends, and Hugging Face's `generate` where it is installed."""
    peers: dict[str, Decode] = {}
    if find_spec("transformers") is not None:
        generate = hugging_face(subject.model, device=workload.device)
        peers["Hugging Face"] = lambda idx, params: generate(idx.to(workload.device), params)
    moved = Subject(subject.name, subject.model.to(workload.device), subject.prompt)
    return {name: ours(name, moved).decode for name in workload.backends} | peers


def measure(entrants: dict[str, Decode], subject: Subject, batch: int, workload: Workload) -> dict[str, list[float]]:
    """Measure tokens per second, prefill included, in every round but the first, which warms up."""
    idx = subject.prompts(batch)
    params = SamplingParams(max_new_tokens=workload.tokens, temperature=0.8)
    rates: dict[str, list[float]] = {name: [] for name in entrants}
    for number, name in interleave(list(entrants), workload.rounds + 1, silent):
        start = time.perf_counter()
        entrants[name](idx, params)
        if workload.device == "cuda":
            torch.cuda.synchronize()
        if number:
            rates[name].append(batch * workload.tokens / (time.perf_counter() - start))
    return rates
