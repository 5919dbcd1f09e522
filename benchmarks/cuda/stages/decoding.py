"""Tokens per second by backend and batch, beside Hugging Face, on the same random weights in float32."""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.cuda.outcome import Outcome
from benchmarks.cuda.sizes import Size
from benchmarks.decode_peers import HuggingFace, check_agreement
from benchmarks.decode_turns import Subject, from_shape, ours
from benchmarks.spread import in_turns
from gpt.config import ModelConfig, SamplingParams
from gpt.model import GPT

PROMPT = 16
Decode = Callable[[Tensor, SamplingParams], None]


def run(size: Size) -> Outcome:
    """Everybody in turns, for each shape and batch."""
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
    """GPT-2's architecture in the shape L/H/C."""
    layers, heads, width = (int(part) for part in shape.split("/"))
    return ModelConfig(n_layer=layers, n_head=heads, n_embd=width, block_size=window, vocab_size=65)


def entrants_of(subject: Subject, size: Size) -> dict[str, Decode]:
    """Our backends, and Hugging Face where it is installed."""
    device = torch.device(size.device)
    peers: dict[str, Decode] = {}
    if find_spec("transformers") is not None:
        peers["Hugging Face"] = peer_of(subject.model, device)
    moved = Subject(subject.name, subject.model.to(device), subject.prompt)
    return {name: backend_of(name, moved) for name in size.backends} | peers


def backend_of(name: str, subject: Subject) -> Decode:
    """One of our backends."""
    entrant = ours(name, subject)

    def decode(idx: Tensor, params: SamplingParams) -> None:
        entrant.decode(idx, params)

    return decode


def peer_of(model: GPT, device: torch.device) -> Decode:
    """Hugging Face's `generate` with the weights of a model on the CPU."""
    peer = HuggingFace(model)
    check_agreement(peer, model)
    peer.model.to(device)

    def decode(idx: Tensor, params: SamplingParams) -> None:
        assert peer.generate(idx.to(device), params) == idx.size(1) + params.max_new_tokens

    return decode


def measure(entrants: dict[str, Decode], subject: Subject, batch: int, size: Size) -> dict[str, list[float]]:
    """Tokens per second of every round but the first, which warms up; prefill is included."""
    idx = subject.prompts(batch)
    params = SamplingParams(max_new_tokens=size.tokens, temperature=0.8)
    rates: dict[str, list[float]] = {name: [] for name in entrants}
    for number, order in enumerate(in_turns(list(entrants), size.rounds + 1)):
        for name in order:
            start = time.perf_counter()
            entrants[name](idx, params)
            if size.device == "cuda":
                torch.cuda.synchronize()
            if number:
                rates[name].append(batch * size.tokens / (time.perf_counter() - start))
    return rates
