"""`scripts/bench.py decode`: tokens per second by model size, batch, backend and weights, beside peers."""

import argparse
import math
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from benchmarks.cli_options import add_count, add_measurement, add_variants, at_least, check_installed
from benchmarks.measure import Row, describe, finish, interleave, make_table, ratios, show, show_ratios
from gpt.cli.command import report
from gpt.config import ModelConfig, RunConfig, SamplingParams
from gpt.system.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.decoders import Entrant, Subject

PLAIN = ("eager", "native", "native-bf16", "native-int8", "native-int4", "eager-int8")
LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "tie_weights": False}
NOTE = (
    "Tokens/s: sampled tokens of all sequences, first ones included; median of the rounds. Prompt/s: prompt tokens\n"
    "per second, until every sequence has its first token. Read: weights, keys and values that a step needs. Of\n"
    "bandwidth: over what a matrix-vector product of as many bytes reads here. Ratio: time over that of our first row\n"
    "(for a peer: our first row with as many bits per weight), median of the rounds (lowest-highest)."
)
COLUMNS = {
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "prompt/s": lambda row: show(row["prompt_tokens_per_second"], ",.0f"),
    "first, ms": lambda row: show(row["first_seconds"], ".2f", 1000),
    "read": lambda row: f"{row['bytes_per_second'] / 1e9:.1f} GB/s",
    "of bandwidth": lambda row: f"{row['bandwidth_share']:.1%}",
    "ratio": lambda row: show_ratios(row["times"]),
    "to": lambda row: row["times_of"],
}


def add_parser(subparsers: Any) -> None:
    summary = "Time decoding by several backends and peers in interleaved rounds, with the same weights."
    example = "--architecture llama --shapes 4/4/128 --batch 1 32 --hf --llama-cpp"
    parser = add_measurement(subparsers, "decode", summary, example)
    shapes = "layers, heads and width of models with random weights (default: 4/4/128 6/6/384)"
    parser.add_argument("--shapes", nargs="+", metavar="L/H/C", help=shapes)
    trained = "measure a trained model instead"
    parser.add_argument("--checkpoint", metavar="PATH", type=Path, help=trained)
    add_variants(parser, PLAIN, "native,eager")
    architecture = "of the shapes (default: gpt2)"
    parser.add_argument("--architecture", choices=("gpt2", "llama"), default="gpt2", help=architecture)
    parser.add_argument("--device", default="cpu", help="where to decode, such as cuda (default: cpu)")
    add_count(parser, "--batch", [1], "sequences in a batch")
    add_count(parser, "--window", 256, "block_size of the shapes")
    add_count(parser, "--prompt-length", 16, "tokens of the prompt")
    add_count(parser, "--tokens", 240, "tokens sampled after the prompt; 1: prefill only")
    add_count(parser, "--rounds", 5, "rounds")
    temperature = "0: greedy (default: 0.8)"
    parser.add_argument("--temperature", type=at_least(0, float), default=0.8, metavar="X", help=temperature)
    parser.add_argument("--hf", action="store_true", help="also measure Hugging Face: `generate` with a cache")
    python = "also measure llama.cpp, float32 and Q8_0, with the Python that has llama_cpp and gguf (default: this one)"
    parser.add_argument("--llama-cpp", nargs="?", const=sys.executable, metavar="PYTHON", help=python)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure one model size and batch after another; within one, all backends and peers in interleaved rounds."""
    _check(arguments)
    shapes = arguments.shapes or ("4/4/128", "6/6/384")
    configs = {f"{arguments.architecture} {shape}": config_of(shape, arguments) for shape in shapes}

    from benchmarks.decoders import from_checkpoint, from_shape, ours, peers
    from gpt.system.device import choose_device, keep_freed_memory

    keep_freed_memory()  # for all alike, as sample.py does
    run = RunConfig(device=arguments.device)
    facts, length, device = describe("decode", arguments, run), arguments.prompt_length, choose_device(run.device)
    trained = arguments.checkpoint
    subjects = (
        [from_checkpoint(trained, length, device)]
        if trained
        else [from_shape(*each, length, device) for each in configs.items()]
    )
    tables, results = [], []
    for subject in subjects:
        with ExitStack() as stack:
            entrants = {name: ours(name, subject) for name in arguments.variants}
            entrants |= peers(subject.model, stack, arguments)
            for batch in arguments.batch:
                rows = measure(entrants, subject, batch, arguments)
                window = subject.model.config.block_size
                title = f"{subject.name}, window {window}, {batch} x ({length} + {arguments.tokens}) tokens"
                tables.append(make_table(title, rows, COLUMNS, ""))
                shared = {"model": subject.name, "window": window, "batch": batch, "prompt": length}
                results.append({**shared, "tokens": arguments.tokens, "rows": rows})
    tables[-1] = replace(tables[-1], note=NOTE)
    settings = {"temperature": arguments.temperature, "rounds": arguments.rounds}
    return finish(arguments, tables, {**facts, **settings, "results": results})


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if options do not go together, or a peer is missing."""
    trained = arguments.checkpoint is not None
    if trained and (arguments.shapes or arguments.hf or arguments.llama_cpp):
        raise ConfigError("--checkpoint has no peers, and goes without --shapes, --hf, --llama-cpp")
    if arguments.llama_cpp is not None:
        length = arguments.prompt_length + arguments.tokens
        if arguments.architecture != "llama":
            raise ConfigError("--llama-cpp needs --architecture llama")
        if length > arguments.window:
            raise ConfigError(f"--llama-cpp does not move its window of {arguments.window} tokens; these are {length}")

        from benchmarks.llama_cpp import check_llama_cpp

        check_llama_cpp(arguments.llama_cpp)
    if arguments.hf:
        check_installed("--hf", "transformers")


def config_of(shape: str, arguments: argparse.Namespace) -> ModelConfig:
    """Return the model of a shape such as 4/4/128; raise ConfigError where it is none."""
    try:
        layers, heads, width = (int(part) for part in shape.split("/"))
    except ValueError:
        raise ConfigError(f"--shapes {shape}: expected layers/heads/width such as 4/4/128") from None
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "block_size": arguments.window, "vocab_size": 65}
    llama = {**LLAMA, "mlp_width": math.ceil(width * 8 / 3 / 32) * 32}  # Q8_0 has blocks of 32
    try:
        return ModelConfig.model_validate({**sizes, **(llama if arguments.architecture == "llama" else {})})
    except ValidationError as error:
        raise ConfigError(f"--shapes {shape}: {error.errors()[0]['msg']}") from None


def measure(
    entrants: "Mapping[str, Entrant]", subject: "Subject", batch: int, arguments: argparse.Namespace
) -> dict[str, Row]:
    """Let everyone decode the same prompts in interleaved rounds, after one that does not count; return JSON rows."""
    idx = subject.prompts(batch)
    params = SamplingParams(max_new_tokens=arguments.tokens, temperature=arguments.temperature)
    ticks: dict[str, list[list[float]]] = {}
    report(f"{subject.name}, batch {batch}: the first round does not count")
    for number, name in interleave(list(entrants), arguments.rounds + 1, report):
        clock = entrants[name].decode(idx, params.model_copy(update={"seed": number}))
        if number:
            ticks.setdefault(name, []).append(clock)
    return {name: row_of(name, entrants, ticks, subject.model.config, batch, arguments) for name in entrants}


def row_of(
    name: str,
    entrants: "Mapping[str, Entrant]",
    ticks: Mapping[str, list[list[float]]],
    config: ModelConfig,
    batch: int,
    arguments: argparse.Namespace,
) -> Row:
    """Return what was measured of one: seconds of each round, rates, and its ratio to `times_of`."""
    from gpt.extras.accounting.bandwidth import measure_bandwidth
    from gpt.generation.kv_cache import cache_bytes
    from gpt.system.device import choose_device

    one, prompt, tokens = entrants[name], arguments.prompt_length, arguments.tokens
    device = choose_device(arguments.device)
    seconds = {key: [clock[-1] - clock[0] for clock in clocks] for key, clocks in ticks.items()}
    ours = [key for key, other in entrants.items() if not other.is_peer]
    alike = [key for key in ours if one.is_peer and entrants[key].weights == one.weights]
    baseline, median = (alike or ours)[0], statistics.median(seconds[name])
    first = [clock[1] - clock[0] for clock in ticks[name] if len(clock) > 2 or tokens == 1]
    keys = min(prompt + tokens // 2, config.block_size)
    read, steps = one.matrix_bytes + cache_bytes(config, batch, keys, "fp32"), tokens / median
    return {
        "weights": one.weights,
        "tokens_per_second": steps * batch,
        "prompt_tokens_per_second": batch * prompt / statistics.median(first) if first else None,
        "first_seconds": statistics.median(first) if first else None,
        "bytes_per_second": steps * read,
        "bandwidth_share": steps * read / measure_bandwidth(device, read),
        "seconds": seconds[name],
        "times_of": baseline,
        "times": ratios(seconds[baseline], seconds[name]),
    }
