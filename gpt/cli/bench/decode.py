"""`scripts/bench.py decode`: tokens per second, by model size, batch, backend, weights, and beside peers."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli.bench.decode_report import NOTE, DecodeSetting, Timings, summary_of, table_of
from gpt.cli.bench.options import check_counts, check_peers
from gpt.cli.bench.output import describe, finish
from gpt.cli.bench.spread import in_turns
from gpt.cli.common import parser_format, report
from gpt.config import ModelConfig, SamplingParams
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.generation import Runtime
    from gpt.model import GPT

EXAMPLE = "python scripts/bench.py decode --shapes 4/4/128 6/6/384 --batch 1 64 --hf --nanogpt ../nanoGPT"
VARIANTS = ("eager", "eager-no-cache", "native", "native-int8", "native-int4")
PROMPT = 16
"""Tokens of the prompt."""
PAUSE = 0.3
"""Seconds between two turns, in which the threads of the last one fall asleep."""


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    summary = "time decoding of several backends and peers in turns, on the same weights"
    parser = subparsers.add_parser("decode", help=summary, **parser_format(f"T{summary[1:]}.", EXAMPLE))
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["4/4/128", "6/6/384"],
        metavar="L/H/C",
        help="layers, heads, width of GPT-2-like models with random weights (default: 4/4/128 6/6/384)",
    )
    parser.add_argument(
        "--variants",
        default="native,eager",
        metavar="A,B,...",
        help=f"of {', '.join(VARIANTS)}; ratios are to the first (default: native,eager)",
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1], metavar="N", help="texts at once (default: 1)")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="of the models (default: 256)")
    parser.add_argument("--tokens", type=int, default=240, metavar="N", help=f"after {PROMPT} (default: 240)")
    parser.add_argument("--hf", action="store_true", help="also Hugging Face: GPT-2 under generate, with its cache")
    parser.add_argument("--hf-compiled", action="store_true", help="also the same compiled, with a static cache")
    parser.add_argument("--nanogpt", metavar="PATH", type=Path, help="also nanoGPT, from this checkout")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the last line there too")
    parser.set_defaults(run=run, config=None, overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """One model size and batch after the other; within one everybody in turns."""
    check_counts(arguments, "window", "tokens", "rounds")
    check_peers(arguments)
    if min(arguments.batch) < 1:
        raise ConfigError(f"--batch has {min(arguments.batch)}, expected at least 1")
    if arguments.json is not None and not Path(arguments.json).absolute().parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: there is no such folder")
    configs = {shape: _config(shape, arguments.window) for shape in arguments.shapes}
    names = [name.strip() for name in arguments.variants.split(",")]
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"--variants: {name!r} is none of {', '.join(VARIANTS)}")

    import torch

    from gpt.device import measure_matmul_rate
    from gpt.model import GPT

    facts = describe("decode", arguments, torch.get_num_threads())
    rate = measure_matmul_rate(torch.device("cpu"), torch.float32)
    tables, results = [], []
    for shape, config in configs.items():
        torch.manual_seed(1)
        model = GPT(config).eval()
        for batch in arguments.batch:
            setting = DecodeSetting(shape, config, batch, PROMPT, arguments.tokens, rate)
            entrants = [_ours(name, model) for name in names] + _peers(arguments, model)
            timings = _take_turns(entrants, setting, arguments.rounds)
            tables.append(table_of(setting, timings))
            results.append(summary_of(setting, timings))
    tables[-1] = replace(tables[-1], note=NOTE)
    return finish(arguments, tables, {**facts, "rounds": arguments.rounds, "results": results})


@dataclass(frozen=True)
class Entrant:
    """Who decodes.

    Attributes:
        name: shown to the user.
        decode: (B, T) ids and parameters; calls back after every token of the batch where it can.
        weights: float32, int8 or int4.
    """

    name: str
    decode: Callable[["Tensor", SamplingParams, Callable[[], None]], None]
    weights: str = field(default="float32")


def _ours(name: str, model: "GPT") -> Entrant:
    from gpt.generation import DecodeOptions, build_runtime
    from gpt.model.quantized import quantize

    backend, _, weights = name.partition("-")
    if weights in ("int8", "int4"):
        model = quantize(model, weights)
    runtime = build_runtime(model, DecodeOptions(backend, cache=weights != "no-cache"), report=report)

    def decode(idx: "Tensor", params: SamplingParams, tick: Callable[[], None]) -> None:
        _drain(runtime, idx.tolist(), params, tick)

    return Entrant(name, decode, weights if weights in ("int8", "int4") else "float32")


def _drain(
    runtime: "Runtime", prompts: Sequence[Sequence[int]], params: SamplingParams, tick: Callable[[], None]
) -> None:
    decoder = runtime.decoder(prompts, params, range(len(prompts)))
    for _ in range(params.max_new_tokens):
        assert len(decoder.step()) == len(prompts)
        tick()


def _peers(arguments: argparse.Namespace, model: "GPT") -> list[Entrant]:
    from gpt.cli.bench.decode_peers import HuggingFace, NanoGPT, check_agreement

    peers: dict[str, HuggingFace | NanoGPT] = {}
    if arguments.hf:
        peers["Hugging Face"] = HuggingFace(model)
    if arguments.hf_compiled:
        peers["Hugging Face, compiled"] = HuggingFace(model, compiled=True)
    if arguments.nanogpt is not None:
        peers["nanoGPT"] = NanoGPT(model, arguments.nanogpt)
    for peer in peers.values():
        check_agreement(peer, model)
    return [Entrant(name, _peer_decode(peer)) for name, peer in peers.items()]


def _peer_decode(peer: Any) -> Callable[["Tensor", SamplingParams, Callable[[], None]], None]:
    def decode(idx: "Tensor", params: SamplingParams, tick: Callable[[], None]) -> None:
        assert peer.generate(idx, params) == idx.size(1) + params.max_new_tokens

    return decode


def _take_turns(entrants: Sequence[Entrant], setting: DecodeSetting, rounds: int) -> dict[str, Timings]:
    """A round that does not count, then the others."""
    import torch

    params = SamplingParams(max_new_tokens=setting.tokens, temperature=0.8)
    idx = torch.randint(setting.config.vocab_size or 0, (setting.batch, setting.prompt))
    by_name = {entrant.name: entrant for entrant in entrants}
    timings = {entrant.name: Timings(entrant.weights) for entrant in entrants}
    for number, order in enumerate(in_turns(list(by_name), rounds + 1)):
        for name in order:
            time.sleep(PAUSE)
            ticks = [time.perf_counter()]
            by_name[name].decode(idx, params, lambda ticks=ticks: ticks.append(time.perf_counter()))  # type: ignore[misc]
            if number:
                timings[name].add(ticks, time.perf_counter())
    return timings


def _config(shape: str, window: int) -> ModelConfig:
    try:
        layers, heads, width = (int(part) for part in shape.split("/"))
        return ModelConfig(n_layer=layers, n_head=heads, n_embd=width, block_size=window, vocab_size=65)
    except ValueError as error:
        raise ConfigError(f"--shapes {shape}: expected layers/heads/width such as 4/4/128 ({_first(error)})") from None


def _first(error: ValueError) -> str:
    return str(error).splitlines()[0]
