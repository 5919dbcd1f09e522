"""What `bench.py decode` measures: this package's backends, and peers with the weights of the same model."""

import argparse
import copy
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.hugging_face import build_gpt2, import_library
from benchmarks.llama_cpp import LLAMA_NAMES, LLAMA_SIZES, LlamaCpp, is_llama
from benchmarks.nanogpt import build_nanogpt, shape_of
from gpt.checkpoint import Loaded, load_trained
from gpt.cli.command import report
from gpt.cli.decoding_options import make_drafter_of
from gpt.config import ModelConfig, SamplingParams
from gpt.errors import ConfigError
from gpt.generation import DecodeOptions, Runtime, build_runtime, generate_tokens
from gpt.generation.text import encode_prompt
from gpt.model import GPT
from gpt.model.quantized import NAMES, matrix_bytes, quantize, weights_format

Decode = Callable[[Tensor, SamplingParams], list[float]]
"""Samples after ids (B, T); returns the clock at the start, after each step where that is visible, and at the end."""
Logits = Callable[[Tensor], Tensor]
"""Maps ids (1, T) to logits (1, T, V)."""


@dataclass(frozen=True)
class Entrant:
    """A way to decode; `matrix_bytes` are read for each step, `about` says more on some batch and prompt length."""

    decode: Decode
    weights: str
    matrix_bytes: int
    is_peer: bool = False
    about: Callable[[int, int], str] = lambda batch, prompt: ""


@dataclass(frozen=True)
class Subject:
    """A model in eval mode, and the ids (T,) of a prompt; `loaded` is what a trained one came with."""

    name: str
    model: GPT
    prompt: Tensor
    loaded: Loaded | None = None

    def prompts(self, batch: int) -> Tensor:
        """Return ids (B, T); random sequences differ, so that nobody computes one for all."""
        rows = [self.prompt if self.loaded else self.prompt.roll(row) for row in range(batch)]
        return torch.stack(rows)


def from_shape(name: str, config: ModelConfig, prompt: int) -> Subject:
    """Return a model with random weights, so large that every part matters to the logits."""
    torch.manual_seed(1)
    model = GPT(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
    return Subject(name, model, torch.randint(model.vocab_size, (prompt,)))


def from_checkpoint(path: Path, prompt: int) -> Subject:
    """Return a trained model, and the beginning of a text that it generated."""
    loaded = load_trained(path, Path("runs"), torch.device("cpu"))
    start = encode_prompt(loaded.tokenizer, "", SamplingParams(), loaded.config.model.block_size)
    tokens = generate_tokens(loaded.model, start, SamplingParams(max_new_tokens=prompt - 1))
    return Subject(str(path), loaded.model, torch.tensor([*start, *tokens]), loaded)


def ours(variant: str, subject: Subject) -> Entrant:
    """Return a backend, by names such as `eager-no-cache`, `native-int8` and `native-int8-ngram`."""
    backend, *rest = variant.split("-")
    weights = next((name for name in rest if name in NAMES), None)
    drafts = next((name for name in rest if name in ("ngram", "lookup")), None)
    model = subject.model if weights is None else quantize(subject.model, weights)
    drafter = make_drafter_of(drafts, subject.loaded, Path("runs")) if subject.loaded else None
    options = DecodeOptions(backend, cache="cache" not in rest)
    runtime = build_runtime(model, options, report=report, make_drafter=drafter)
    return Entrant(stepwise(runtime), weights_format(model), matrix_bytes(model))


def stepwise(runtime: Runtime) -> Decode:
    """Return what decodes with a runtime, a step for each token of all sequences."""

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        ticks = [time.perf_counter()]
        decoder = runtime.decoder(idx.tolist(), params, range(params.seed, params.seed + len(idx)))
        for _ in range(params.max_new_tokens):
            assert len(decoder.step()) == len(idx)
            ticks.append(time.perf_counter())
        return [*ticks, time.perf_counter()]

    return decode


def peers(model: GPT, stack: ExitStack, wanted: argparse.Namespace) -> dict[str, Entrant]:
    """Return the peers that the options name, with the weights of a model; `stack` ends their processes.

    Raises:
        ConfigError: one computes other logits with them.
        GPTError: llama.cpp cannot run here.
    """
    generators, size = {}, matrix_bytes(model)
    if wanted.hf:
        generators["Hugging Face"] = hugging_face(model)
    if wanted.hf_compiled:
        generators["Hugging Face, compiled"] = hugging_face(model, compiled=True)
    if wanted.nanogpt is not None:
        generators["nanoGPT"] = nanogpt(model, wanted.nanogpt)
    entrants = {name: Entrant(whole(one), "float32", size, is_peer=True) for name, one in generators.items()}
    for kind, tolerance in () if wanted.llama_cpp is None else (("F32", 1e-3), ("Q8_0", 0.3)):
        peer = LlamaCpp(model, kind, wanted.llama_cpp, stack, report)
        check_agreement(f"llama.cpp {kind}", peer.logits, model, tolerance)
        if kind == "F32":
            check_greedy(peer, model)
        weights = "float32" if kind == "F32" else "int8"  # Q8_0 has a scale for 32 weights
        read = size if kind == "F32" else matrix_bytes(quantize(model, "int8"))
        entrants[f"llama.cpp {kind}"] = Entrant(peer.decode, weights, read, is_peer=True, about=peer.about)
    return entrants | (torchao(model) if wanted.torchao else {})


def whole(generate: Callable[[Tensor, SamplingParams], Tensor]) -> Decode:
    """Return what decodes with a peer that gives all ids (B, T + max_new_tokens) at the end."""

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        start = time.perf_counter()
        assert generate(idx, params).size(1) == idx.size(1) + params.max_new_tokens
        return [start, time.perf_counter()]

    return decode


def hugging_face(model: GPT, compiled: bool = False, device: str = "cpu") -> Callable[[Tensor, SamplingParams], Tensor]:
    """Return `generate` of GPT-2 (for models without biases, which stay zero there) or Llama, with a cache.

    `compiled`: with a static cache and a step that transformers compiles.
    """
    llama = is_llama(model.config)
    peer = build_llama(model.config) if llama else build_gpt2(model.config, activation="gelu")
    peer.eval().config.use_cache = True
    missing, unexpected = peer.load_state_dict(llama_weights(model) if llama else gpt2_weights(model), strict=False)
    assert not unexpected
    assert all(name.endswith("bias") or (model.config.tie_weights and "lm_head" in name) for name in missing)
    if compiled:
        peer.forward = torch.compile(peer.forward)
    check_agreement("Hugging Face", lambda idx: peer(idx).logits, model)
    peer.to(device)
    options = {"cache_implementation": "static"} if compiled else {}

    def generate(idx: Tensor, params: SamplingParams) -> Tensor:
        count, sampled = params.max_new_tokens, {"temperature": params.temperature, "top_k": 0}
        ids: Tensor = peer.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            do_sample=params.temperature > 0,
            min_new_tokens=count,
            max_new_tokens=count,
            use_cache=True,
            **(sampled if params.temperature else {}),
            **options,
        )
        return ids

    return generate


def nanogpt(model: GPT, checkout: Path) -> Callable[[Tensor, SamplingParams], Tensor]:
    """Return `generate` of nanoGPT's model, which computes the whole window for every token."""
    peer = build_nanogpt(checkout, shape_of(model.config)).eval()
    weights = fused_weights(model)
    peer.load_state_dict({name if "lm_head" in name else f"transformer.{name}": w for name, w in weights.items()})
    check_agreement("nanoGPT", lambda idx: peer(idx, idx)[0], model)

    def generate(idx: Tensor, params: SamplingParams) -> Tensor:
        options = {"temperature": params.temperature} if params.temperature else {"top_k": 1}
        ids: Tensor = peer.generate(idx, params.max_new_tokens, **options)
        return ids

    return generate


def torchao(model: GPT) -> dict[str, Entrant]:
    """Return copies of a model whose blocks' linear layers torchao has quantized, under our eager backends."""
    from torchao import quantization as ao

    int4 = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32))  # type: ignore[attr-defined]
    formats = {
        "torchao int8, eager": ("int8", ao.Int8WeightOnlyConfig(), "eager"),
        "torchao int8, compiled step": ("int8", ao.Int8WeightOnlyConfig(), "compiled"),
        "torchao int8 with int8 activations": ("int8", ao.Int8DynamicActivationInt8WeightConfig(), "eager"),
        "torchao int4 in groups of 32": ("int4", int4, "eager"),
    }
    entrants = {}
    for name, (weights, config, backend) in formats.items():
        copied = copy.deepcopy(model)
        ao.quantize_(copied.h, config, filter_fn=lambda module, name: isinstance(module, torch.nn.Linear))
        decode, read = stepwise(build_runtime(copied, DecodeOptions(backend))), matrix_bytes(quantize(model, weights))
        entrants[name] = Entrant(decode, weights, read, is_peer=True)
    return entrants


@torch.inference_mode()
def check_agreement(name: str, logits: Logits, model: GPT, tolerance: float = 1e-3) -> None:
    """Raise ConfigError where a peer does not compute the logits of the model."""
    idx = torch.arange(min(16, model.config.block_size)).remainder(model.vocab_size).unsqueeze(0)
    difference = float((logits(idx) - model(idx)).abs().max())
    if not difference <= tolerance:
        raise ConfigError(f"{name} gives other logits with these weights, by {difference:.2g}")


@torch.inference_mode()
def check_greedy(peer: LlamaCpp, model: GPT) -> None:
    """Raise ConfigError where llama.cpp does not continue three prompts with the model's likeliest tokens."""
    length = min(16, model.config.block_size // 2)
    prompts = torch.arange(3 * length).remainder(model.vocab_size).view(3, length)
    idx = prompts
    for _ in range(length):
        idx = torch.cat((idx, model(idx)[:, -1:].argmax(dim=-1)), dim=1)
    if not torch.equal(peer.greedy(prompts, length), idx[:, length:]):
        raise ConfigError("llama.cpp gives other greedy tokens with these weights")


def build_llama(config: ModelConfig) -> Any:
    """Build LlamaForCausalLM in the same shape."""
    library, sizes = import_library(), {theirs: getattr(config, ours) for ours, (theirs, _) in LLAMA_SIZES.items()}
    rope = {"rope_type": "default", "rope_theta": sizes.pop("rope_theta")}
    tied = {"tie_word_embeddings": config.tie_weights, "bos_token_id": None, "eos_token_id": None}
    return library.LlamaForCausalLM(library.LlamaConfig(**sizes, rope_parameters=rope, **tied))


def llama_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights under Llama's names in transformers; matrices are (out, in) there too."""
    weights = {}
    for name, value in model.state_dict().items():
        *block, module = name.removesuffix(".weight").split(".", 2)
        prefix = f"model.layers.{block[1]}." if block else "" if module == "lm_head" else "model."
        weights[f"{prefix}{LLAMA_NAMES[module][0]}.weight"] = value
    return weights


def gpt2_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights under GPT-2's names in transformers, which keeps matrices of blocks as (in, out)."""
    weights = {}
    for name, value in fused_weights(model).items():
        is_conv1d = name.startswith("h.") and value.dim() == 2
        weights[name if "lm_head" in name else f"transformer.{name}"] = value.T if is_conv1d else value
    return weights


def fused_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights under GPT-2's names: queries, keys and values in one matrix (out, in)."""
    weights = dict(model.state_dict())
    for name in [name for name in weights if ".attn.c_q." in name]:
        parts = [weights.pop(name.replace("c_q", part)) for part in ("c_q", "c_k", "c_v")]
        weights[name.replace("c_q", "c_attn")] = torch.cat(parts)
    return weights
