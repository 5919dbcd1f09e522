"""Who decodes in a measurement, and how long each takes, in turns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt.checkpoint import Loaded, load_trained
from gpt.cli.bench.decode_peers import HuggingFace, NanoGPT, check_agreement
from gpt.cli.bench.decode_report import DecodeSetting, Timings
from gpt.cli.bench.spread import PAUSE, in_turns
from gpt.cli.common import report
from gpt.cli.drafting import make_drafter_of
from gpt.config import ModelConfig, SamplingParams
from gpt.device import measure_bandwidth
from gpt.generation import DecodeOptions, EagerRuntime, build_runtime, generate_tokens
from gpt.generation.prompts import encode_prompt
from gpt.model import GPT
from gpt.model.quantized import NAMES, matrix_bytes, quantize, weights_format

Tick = Callable[[], None]
Decode = Callable[[Tensor, SamplingParams, Tick], None]
"""Takes (B, T) ids and parameters; calls back after every token of the batch, where it can."""


@dataclass(frozen=True)
class Entrant:
    """Who decodes.

    Attributes:
        name: shown to the user.
        decode: draws `max_new_tokens` for every row.
        model: whose weights are read.
    """

    name: str
    decode: Decode
    model: GPT


@dataclass(frozen=True)
class Subject:
    """What is decoded from.

    Attributes:
        name: shown to the user.
        model: in eval mode.
        prompt: token ids.
        loaded: what the model came with, or None where its weights are random.
    """

    name: str
    model: GPT
    prompt: Sequence[int]
    loaded: Loaded | None = None


def from_shape(name: str, config: ModelConfig, prompt: int) -> Subject:
    """A model with random weights: the arithmetic is the same as with trained ones."""
    torch.manual_seed(1)
    assert config.vocab_size is not None
    return Subject(name, GPT(config).eval(), torch.randint(config.vocab_size, (prompt,)).tolist())


def from_checkpoint(path: Path, prompt: int) -> Subject:
    """A trained model, and the beginning of a text of its own.

    Raises:
        CheckpointError: it cannot be read.
    """
    loaded = load_trained(path, Path("runs"), torch.device("cpu"))
    start = encode_prompt(loaded.tokenizer, "", SamplingParams(), loaded.config.model.block_size)
    params = SamplingParams(max_new_tokens=prompt - 1)
    tokens = generate_tokens(loaded.model, start, params, EagerRuntime(loaded.model, DecodeOptions()))
    return Subject(str(path), loaded.model, [*start, *tokens], loaded)


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

    def decode(idx: Tensor, params: SamplingParams, tick: Tick) -> None:
        decoder = runtime.decoder(idx.tolist(), params, range(len(idx)))
        for _ in range(params.max_new_tokens):
            assert len(decoder.step()) == len(idx)
            tick()

    return Entrant(variant, decode, model)


def peers(model: GPT, hugging_face: bool, compiled: bool, nanogpt: Path | None) -> list[Entrant]:
    """The peers that were asked for, with the weights of a model.

    Raises:
        ConfigError: one computes other logits with them.
    """
    found: dict[str, HuggingFace | NanoGPT] = {}
    if hugging_face:
        found["Hugging Face"] = HuggingFace(model)
    if compiled:
        found["Hugging Face, compiled"] = HuggingFace(model, compiled=True)
    if nanogpt is not None:
        found["nanoGPT"] = NanoGPT(model, nanogpt)
    for peer in found.values():
        check_agreement(peer, model)
    return [Entrant(name, _decode_of(peer), model) for name, peer in found.items()]


def _decode_of(peer: HuggingFace | NanoGPT) -> Decode:
    def decode(idx: Tensor, params: SamplingParams, tick: Tick) -> None:
        assert peer.generate(idx, params) == idx.size(1) + params.max_new_tokens

    return decode


def take_turns(entrants: Sequence[Entrant], setting: DecodeSetting, rounds: int) -> dict[str, Timings]:
    """A round that does not count, then the others."""
    params = SamplingParams(max_new_tokens=setting.tokens, temperature=0.8)
    idx = torch.tensor([setting.prompt] * setting.batch)
    by_name = {entrant.name: entrant for entrant in entrants}
    timings = {entrant.name: _no_timings(entrant, setting) for entrant in entrants}
    for number, order in enumerate(in_turns(list(by_name), rounds + 1)):
        for name in order:
            time.sleep(PAUSE)
            ticks = _ticks_of(by_name[name], idx, params)
            if number:
                timings[name].add(ticks)
    return timings


def _no_timings(entrant: Entrant, setting: DecodeSetting) -> Timings:
    read = matrix_bytes(entrant.model) + setting.cache_bytes_per_step
    return Timings(weights_format(entrant.model), read, measure_bandwidth(torch.device("cpu"), read))


def _ticks_of(entrant: Entrant, idx: Tensor, params: SamplingParams) -> list[float]:
    """When it began, when each token came, as far as that can be seen, and when it ended."""
    ticks = [time.perf_counter()]
    entrant.decode(idx, params, lambda: ticks.append(time.perf_counter()))
    return [*ticks, time.perf_counter()]
