"""What `bench.py decode` measures: this package's backends, and peers with the weights of the same
model.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import compiled
from benchmarks.compiled import Compiled
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
"""Samples after ids (B, T); returns the clock in seconds: at the start, after each step, and at the
end.

A peer that returns all tokens at a time gives only the start and the end.
"""


LLAMA_CPP_TOLERANCES = {"F32": 1e-3, "Q8_0": 0.3}
"""By how much its logits may differ; 8 bits round the weights."""


@dataclass(frozen=True)
class Entrant:
    """A way to decode.

    Attributes:
        weights: their format.
        matrix_bytes: bytes of weights that each step reads.
        is_peer: whether it is another library.
    """

    decode: Decode
    weights: str
    matrix_bytes: int
    is_peer: bool = False


@dataclass(frozen=True)
class Subject:
    """A model in eval mode, and the ids (T,) of a prompt.

    Attributes:
        is_trained: whether the model came from a checkpoint.
    """

    name: str
    model: GPT
    prompt: Tensor
    is_trained: bool = False

    def prompts(self, batch: int) -> Tensor:
        """Return ids (B, T).

        Prompts of random ids differ from row to row, so that no entrant can compute one for all. A
        trained model has the same text in each row, since a rolled one would be none.
        """
        if self.is_trained:
            return torch.stack([self.prompt] * batch)
        return torch.stack([self.prompt.roll(row) for row in range(batch)])


def from_shape(
    name: str, config: ModelConfig, prompt: int, device: torch.device | str = "cpu"
) -> Subject:
    """Return a model with random weights.

    They are larger than at the start of a training, so that every part matters to the logits, which
    are compared with those of peers.
    """
    torch.manual_seed(1)
    model = GPT(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            fan_in = parameter.size(1)
            torch.nn.init.normal_(parameter, std=fan_in**-0.5)
    return Subject(name, model.to(device), torch.randint(model.vocab_size, (prompt,)))


def from_checkpoint(path: Path, prompt: int, device: torch.device) -> Subject:
    """Return a trained model, and as its prompt the beginning of a text that it generates."""
    loaded = load_trained(path, Path("runs"), device)
    # the id that an empty prompt begins with
    start = encode_prompt(loaded.tokenizer, "", SamplingParams(), loaded.config.model.block_size)
    tokens = generate_tokens(loaded.model, start, SamplingParams(max_new_tokens=prompt - 1))
    return Subject(str(path), loaded.model, torch.tensor([*start, *tokens]), is_trained=True)


def ours(variant: str, subject: Subject) -> Entrant:
    """Return a backend of this package by the name of its variant, such as `eager` or
    `native-int8`.
    """
    backend, _, weights = variant.partition("-")
    model = quantize(subject.model, weights) if weights in NAMES else subject.model
    # Graphs multiply bf16 weights in bfloat16, and another type of keys would be converted.
    kv_dtype = "bf16" if variant == "graph-bf16" else "fp32"
    runtime = build_runtime(model, DecodeOptions(backend, kv_dtype), report=report)
    return Entrant(stepwise(runtime), weights_format(model), matrix_bytes(model))


def drafted(subject: Subject, path: Path, device: torch.device) -> Entrant:
    """Return the fastest backend with a draft, which is the model of a run."""
    draft = load_trained(path, Path("runs"), device).model
    runtime = build_runtime(subject.model, report=report, draft=draft)
    return Entrant(stepwise(runtime), weights_format(subject.model), matrix_bytes(subject.model))


def stepwise(runtime: Runtime) -> Decode:
    """Return a function that decodes with a runtime, in a step for each token of all sequences."""

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        ticks = [time.perf_counter()]
        batch = Batch(runtime, idx.tolist(), params, range(params.seed, params.seed + len(idx)))
        for _ in range(params.max_new_tokens):
            assert len(batch.step()) == len(idx)
            ticks.append(time.perf_counter())
        return [*ticks, time.perf_counter()]

    return decode


def peers(model: GPT, stack: ExitStack, wanted: argparse.Namespace) -> dict[str, Entrant]:
    """Return the peers that the options name, with the weights of a model.

    Args:
        stack: ends their processes.
        wanted: the options of the command.

    Raises:
        ConfigError: a peer computes other logits with the same weights.
        GPTError: llama.cpp cannot run here.
    """
    entrants: dict[str, Entrant] = {}
    if wanted.hf:
        decode = whole(hugging_face(model), model)
        entrants["Hugging Face"] = Entrant(decode, "float32", matrix_bytes(model), is_peer=True)
    if wanted.compiled:
        decode = Compiled(model, stack).decode
        entrants[compiled.NAME] = Entrant(decode, "float32", matrix_bytes(model), is_peer=True)
    if wanted.llama_cpp is not None:
        entrants |= _llama_cpp_entrants("F32", "float32", model, stack, wanted.llama_cpp)
        # Q8_0 has a scale for every 32 weights, int8 of this package one for a row
        entrants |= _llama_cpp_entrants("Q8_0", "int8", model, stack, wanted.llama_cpp)
    return entrants


def _llama_cpp_entrants(
    kind: str, weights: str, model: GPT, stack: ExitStack, python: str
) -> dict[str, Entrant]:
    """Return llama.cpp with each type of cache.

    `kind` is its name of a format, `weights` the one that is closest here.
    """
    peer = LlamaCpp(model, kind, python, stack)
    check_agreement(f"llama.cpp {kind}", peer.logits, model, LLAMA_CPP_TOLERANCES[kind])
    stored = model if weights == "float32" else quantize(model, weights)
    read = matrix_bytes(stored)
    entrants = {}
    for cache in CACHES:
        decode = partial(peer.decode, cache=cache)
        entrants[f"llama.cpp {kind}, cache {cache}"] = Entrant(decode, weights, read, is_peer=True)
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
    """Return a function that decodes with a peer which returns all ids (B, T + max_new_tokens) at
    the end.
    """
    device = next(model.parameters()).device

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        start = time.perf_counter()
        ids = generate(idx.to(device), params).cpu()  # the copy waits until a GPU has finished
        assert ids.size(1) == idx.size(1) + params.max_new_tokens
        return [start, time.perf_counter()]

    return decode
