"""Who decodes in a measurement, and how long each takes, in turns."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.decode_peers import HuggingFace, NanoGPT, check_agreement, check_greedy
from benchmarks.decode_report import DecodeSetting, Timings
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.spread import PAUSE, in_turns
from gpt.accounting.machine import measure_bandwidth
from gpt.checkpoint import Loaded, load_trained
from gpt.cli.common import report
from gpt.cli.drafting import make_drafter_of
from gpt.config import ModelConfig, SamplingParams
from gpt.generation import DecodeOptions, EagerRuntime, build_runtime, generate_tokens
from gpt.generation.prompts import encode_prompt
from gpt.model import GPT
from gpt.model.quantized import NAMES, matrix_bytes, quantize, weights_format

Decode = Callable[[Tensor, SamplingParams], list[float]]
"""Takes (B, T) ids and parameters; gives the clock at the beginning, after each step where that can be seen, and at the
end."""


@dataclass(frozen=True)
class Entrant:
    """Who decodes.

    Attributes:
        name: shown to the user.
        decode: samples `max_new_tokens` for every row.
        model: whose weights are read.
        is_peer: whether it is not this package.
        about: what it is, once it has decoded a batch of some prompts of some length.
    """

    name: str
    decode: Decode
    model: GPT
    is_peer: bool = False
    about: Callable[[int, int], str] = lambda batch, prompt: ""


@dataclass(frozen=True)
class Subject:
    """What is decoded from.

    Attributes:
        name: shown to the user.
        model: in eval mode.
        prompt: token ids (T,); those of other rows are the same, moved in a circle.
        loaded: what the model came with, or None where its weights are random.
    """

    name: str
    model: GPT
    prompt: Tensor
    loaded: Loaded | None = None

    def prompts(self, batch: int) -> Tensor:
        """(B, T) ids; random rows differ, so that nobody computes one for all."""
        if self.loaded is not None:
            return self.prompt.repeat(batch, 1)
        return torch.stack([self.prompt.roll(row) for row in range(batch)])


def from_shape(name: str, config: ModelConfig, prompt: int) -> Subject:
    """A model with random weights, large enough for every part to matter to the logits.

    The arithmetic is the same as with trained ones.
    """
    torch.manual_seed(1)
    assert config.vocab_size is not None
    model = GPT(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
    return Subject(name, model, torch.randint(config.vocab_size, (prompt,)))


def from_checkpoint(path: Path, prompt: int) -> Subject:
    """A trained model, and the beginning of a text of its own.

    Raises:
        CheckpointError: it cannot be read.
    """
    loaded = load_trained(path, Path("runs"), torch.device("cpu"))
    start = encode_prompt(loaded.tokenizer, "", SamplingParams(), loaded.config.model.block_size)
    params = SamplingParams(max_new_tokens=prompt - 1)
    tokens = generate_tokens(loaded.model, start, params, EagerRuntime(loaded.model, DecodeOptions()))
    return Subject(str(path), loaded.model, torch.tensor([*start, *tokens]), loaded)


def ours(variant: str, subject: Subject) -> Entrant:
    """A variant of `decode.VARIANTS`.

    Raises:
        DeviceError: it is a native one, and there is no native backend here.
        CheckpointError: it guesses by n-grams, and there is no table.
    """
    backend, *rest = variant.split("-")
    weights = next((name for name in rest if name in NAMES), None)
    guesses = next((name for name in rest if name in ("ngram", "lookup")), None)
    drafter = make_drafter_of(guesses, subject.loaded, Path("runs")) if subject.loaded is not None else None
    model = subject.model if weights is None else quantize(subject.model, weights)
    options = DecodeOptions(backend, cache="cache" not in rest)
    runtime = build_runtime(model, options, report=report, make_drafter=drafter)

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        ticks = [time.perf_counter()]
        decoder = runtime.decoder(idx.tolist(), params, range(len(idx)))
        for _ in range(params.max_new_tokens):
            assert len(decoder.step()) == len(idx)
            ticks.append(time.perf_counter())
        return [*ticks, time.perf_counter()]

    return Entrant(variant, decode, model)


def peers(
    model: GPT, stack: ExitStack, hugging_face: bool, compiled: bool, nanogpt: Path | None, llama_cpp: str | None
) -> list[Entrant]:
    """The peers that were asked for, with the weights of a model; `stack` ends their processes.

    Raises:
        ConfigError: one computes other logits with them.
        GPTError: llama.cpp cannot run here.
    """
    entrants = []
    if hugging_face:
        entrants.append(_peer("Hugging Face", HuggingFace(model), model))
    if compiled:
        entrants.append(_peer("Hugging Face, compiled", HuggingFace(model, compiled=True), model))
    if nanogpt is not None:
        entrants.append(_peer("nanoGPT", NanoGPT(model, nanogpt), model))
    for kind, tolerance in () if llama_cpp is None else (("F32", 1e-3), ("Q8_0", 0.3)):
        peer = LlamaCpp(model, kind, str(llama_cpp), report)
        stack.callback(peer.close)
        check_agreement(peer, model, tolerance)
        if kind == "F32":
            check_greedy(peer, model)
        read = model if kind == "F32" else quantize(model, "int8")  # Q8_0 has a scale for 32 weights
        entrants.append(Entrant(f"llama.cpp {kind}", peer.decode, read, is_peer=True, about=peer.about))
    return entrants


def _peer(name: str, peer: HuggingFace | NanoGPT, model: GPT) -> Entrant:
    check_agreement(peer, model)

    def decode(idx: Tensor, params: SamplingParams) -> list[float]:
        start = time.perf_counter()
        assert peer.generate(idx, params) == idx.size(1) + params.max_new_tokens
        return [start, time.perf_counter()]

    return Entrant(name, decode, model, is_peer=True)


def take_turns(
    entrants: Sequence[Entrant], setting: DecodeSetting, idx: Tensor, temperature: float, rounds: int
) -> dict[str, Timings]:
    """A round that does not count, then the others, each going on from (B, T) ids."""
    params = SamplingParams(max_new_tokens=setting.tokens, temperature=temperature)
    by_name = {entrant.name: entrant for entrant in entrants}
    timings = {entrant.name: _no_timings(entrant, setting) for entrant in entrants}
    for number, order in enumerate(in_turns(list(by_name), rounds + 1)):
        for name in order:
            time.sleep(PAUSE)
            ticks = by_name[name].decode(idx, params)
            if number:
                timings[name].add(ticks)
    for entrant in entrants:
        timings[entrant.name].about = entrant.about(idx.size(0), idx.size(1))
    return timings


def _no_timings(entrant: Entrant, setting: DecodeSetting) -> Timings:
    read = matrix_bytes(entrant.model) + setting.cache_bytes_per_step
    bandwidth = measure_bandwidth(torch.device("cpu"), read)
    return Timings(weights_format(entrant.model), entrant.is_peer, read, bandwidth)
