"""What `bench.py decode` measures: this package's backends, and peers with the weights of the same model."""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.hugging_face import check_agreement, hugging_face
from benchmarks.llama_cpp import CACHES, LlamaCpp
from gpt.checkpoint import load_trained
from gpt.cli.command import report
from gpt.config import ModelConfig, SamplingParams
from gpt.generation.batch import Batch
from gpt.generation.generator import generate_tokens
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.generation.text import encode_prompt
from gpt.model import GPT
from gpt.model.quantized import NAMES, BFloat16Linear, QuantizedLinear, quantize, weights_format

Decode = Callable[[Tensor, SamplingParams], list[float]]
"""Samples after ids (B, T); returns the clock at the start, after each step where that is visible, and at the end."""


@dataclass(frozen=True)
class Entrant:
    """A way to decode; `matrix_bytes` of weights are read in each step."""

    decode: Decode
    weights: str
    matrix_bytes: int
    is_peer: bool = False


@dataclass(frozen=True)
class Subject:
    """A model in eval mode, and the ids (T,) of a prompt; `is_trained`: it came from a checkpoint."""

    name: str
    model: GPT
    prompt: Tensor
    is_trained: bool = False

    def prompts(self, batch: int) -> Tensor:
        """Return ids (B, T); random sequences differ, so that nobody computes one for all."""
        rows = [self.prompt if self.is_trained else self.prompt.roll(row) for row in range(batch)]
        return torch.stack(rows)


def from_shape(name: str, config: ModelConfig, prompt: int, device: torch.device | str = "cpu") -> Subject:
    """Return a model with random weights, so large that every part matters to the logits."""
    torch.manual_seed(1)
    model = GPT(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
    return Subject(name, model.to(device), torch.randint(model.vocab_size, (prompt,)))


def from_checkpoint(path: Path, prompt: int, device: torch.device) -> Subject:
    """Return a trained model, and the beginning of a text that it generated."""
    loaded = load_trained(path, Path("runs"), device)
    start = encode_prompt(loaded.tokenizer, "", SamplingParams(), loaded.config.model.block_size)
    tokens = generate_tokens(loaded.model, start, SamplingParams(max_new_tokens=prompt - 1))
    return Subject(str(path), loaded.model, torch.tensor([*start, *tokens]), is_trained=True)


def ours(variant: str, subject: Subject) -> Entrant:
    """Return a backend, by names such as `eager` and `native-int8`."""
    backend, *rest = variant.split("-")
    weights = next((name for name in rest if name in NAMES), None)
    model = subject.model if weights is None else quantize(subject.model, weights)
    runtime = build_runtime(model, DecodeOptions(backend), report=report)
    return Entrant(stepwise(runtime), weights_format(model), matrix_bytes(model))


def stepwise(runtime: Runtime) -> Decode:
    """Return what decodes with a runtime, a step for each token of all sequences."""

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        ticks = [time.perf_counter()]
        batch = Batch(runtime, idx.tolist(), params, range(params.seed, params.seed + len(idx)))
        for _ in range(params.max_new_tokens):
            assert len(batch.step()) == len(idx)
            ticks.append(time.perf_counter())
        return [*ticks, time.perf_counter()]

    return decode


def peers(model: GPT, stack: ExitStack, wanted: argparse.Namespace) -> dict[str, Entrant]:
    """Return the peers that the options name, with the weights of a model; `stack` ends their processes.

    Raises:
        ConfigError: one computes other logits with them.
        GPTError: llama.cpp cannot run here.
    """
    entrants, size = {}, matrix_bytes(model)
    if wanted.hf:
        entrants["Hugging Face"] = Entrant(whole(hugging_face(model), model), "float32", size, is_peer=True)
    for kind, tolerance in () if wanted.llama_cpp is None else (("F32", 1e-3), ("Q8_0", 0.3)):
        peer = LlamaCpp(model, kind, wanted.llama_cpp, stack)
        check_agreement(f"llama.cpp {kind}", peer.logits, model, tolerance)
        weights = "float32" if kind == "F32" else "int8"  # Q8_0 has a scale for 32 weights
        read = size if kind == "F32" else matrix_bytes(quantize(model, "int8"))
        for cache in CACHES:
            name = f"llama.cpp {kind}, cache {cache}"
            entrants[name] = Entrant(partial(peer.decode, cache=cache), weights, read, is_peer=True)
    return entrants


def matrix_bytes(model: GPT) -> int:
    """Return the stored size in bytes of all matrices that a token is multiplied by."""
    total = 0
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear):
            total += layer.integers.nbytes + layer.scales.nbytes
        elif isinstance(layer, BFloat16Linear):
            total += layer.rounded.nbytes
        elif isinstance(layer, torch.nn.Linear):
            total += layer.weight.nbytes
    return total


def whole(generate: Callable[[Tensor, SamplingParams], Tensor], model: GPT) -> Decode:
    """Return what decodes with a peer that gives all ids (B, T + max_new_tokens) at the end."""

    device = next(model.parameters()).device

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        start = time.perf_counter()
        ids = generate(idx.to(device), params).cpu()  # which waits for a device
        assert ids.size(1) == idx.size(1) + params.max_new_tokens
        return [start, time.perf_counter()]

    return decode
