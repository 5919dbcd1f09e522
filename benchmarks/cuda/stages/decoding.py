"""Tokens per second by backend and batch, beside Hugging Face, on the same random weights in float32."""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.cuda.outcome import Outcome
from benchmarks.cuda.sizes import Size
from benchmarks.decoders import Subject, from_shape, hugging_face, ours
from benchmarks.measure import interleave
from gpt.config import ModelConfig, SamplingParams
from gpt.progress import silent

PROMPT = 16
Decode = Callable[[Tensor, SamplingParams], object]


def run(size: Size) -> Outcome:
    """Measure everybody in interleaved rounds, for each shape and batch."""
    rows, facts = [], {}
    for shape in size.shapes:
        subject = from_shape(shape, config_of(shape, size.window), PROMPT)
        entrants = entrants_of(subject, size)
        for batch in size.batches:
            measured = measure(entrants, subject, batch, size)
            rates = {name: statistics.median(values) for name, values in measured.items()}
            facts[f"{shape}, batch {batch}"] = rates
            rows.append((f"{shape}, {batch}", *(f"{rate:,.0f}" for rate in rates.values())))
    problems = [] if find_spec("transformers") else ["transformers is not installed: no peer was measured"]
    title = f"Decoding {size.tokens} tokens after {PROMPT}, float32, tokens/s of all rows, median of {size.rounds}"
    return Outcome(title, ("shape, batch", *entrants), rows, facts, problems)


def config_of(shape: str, window: int) -> ModelConfig:
    """Return GPT-2's architecture in the shape L/H/C."""
    layers, heads, width = (int(part) for part in shape.split("/"))
    return ModelConfig(n_layer=layers, n_head=heads, n_embd=width, block_size=window, vocab_size=65)


def entrants_of(subject: Subject, size: Size) -> dict[str, Decode]:
    """Return our backends, and Hugging Face's `generate` where it is installed."""
    peers: dict[str, Decode] = {}
    if find_spec("transformers") is not None:
        generate = hugging_face(subject.model, device=size.device)
        peers["Hugging Face"] = lambda idx, params: generate(idx.to(size.device), params)
    moved = Subject(subject.name, subject.model.to(size.device), subject.prompt)
    return {name: ours(name, moved).decode for name in size.backends} | peers


def measure(entrants: dict[str, Decode], subject: Subject, batch: int, size: Size) -> dict[str, list[float]]:
    """Measure tokens per second, prefill included, in every round but the first, which warms up."""
    idx = subject.prompts(batch)
    params = SamplingParams(max_new_tokens=size.tokens, temperature=0.8)
    rates: dict[str, list[float]] = {name: [] for name in entrants}
    for number, name in interleave(list(entrants), size.rounds + 1, silent):
        start = time.perf_counter()
        entrants[name](idx, params)
        if size.device == "cuda":
            torch.cuda.synchronize()
        if number:
            rates[name].append(batch * size.tokens / (time.perf_counter() - start))
    return rates
