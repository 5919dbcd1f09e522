"""`scripts/bench.py decode`: tokens per second by model size, batch, backend and weights, beside
peers.
"""

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

from benchmarks.cli_options import (
    add_count,
    add_measurement,
    add_variants,
    at_least,
    check_installed,
)
from benchmarks.measure import (
    Row,
    describe,
    finish,
    interleave,
    make_table,
    ratios,
    show,
    show_ratios,
)
from gpt.cli.command import report
from gpt.config import ModelConfig, RunConfig, SamplingParams
from gpt.system.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.decoders import Entrant, Subject

VARIANTS = (
    *("eager", "native", "native-bf16", "native-int8", "native-int4", "eager-int8"),
    *("graph", "graph-bf16"),
)
"""Backends of this package, and the format of their weights where it is not float32."""
Q8_0_BLOCK = 32
"""Weights that share a scale in llama.cpp's format Q8_0; widths have to be multiples of it."""
LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "tie_weights": False}
NOTE = (
    "Tokens/s: sampled tokens of all sequences, first ones included; median of the rounds.\n"
    "Prompt/s: prompt tokens per second, until every sequence has its first token. Read:\n"
    "weights, keys and values that a step needs. Of bandwidth: over what a matrix-vector\n"
    "product of as many bytes reads here. Ratio: time over that of our first row (for a peer:\n"
    "our first row with as many bits per weight), median of the rounds (lowest-highest)."
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
    """Add the command."""
    parser = add_measurement(
        subparsers,
        "decode",
        "Time decoding by several backends and peers in interleaved rounds, with the same weights.",
        "--architecture llama --shapes 4/4/128 --batch 1 32 --hf --llama-cpp",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        metavar="L/H/C",
        help="layers, heads and width of models with random weights (default: 4/4/128 6/6/384)",
    )
    parser.add_argument(
        "--checkpoint", metavar="RUN", type=Path, help="measure a run, by its name or path, instead"
    )
    add_variants(parser, VARIANTS, "native,eager")
    parser.add_argument(
        "--draft", metavar="RUN", type=Path, help="with --checkpoint: also decode with this draft"
    )
    parser.add_argument(
        "--draft-rate",
        type=at_least(0, float),
        metavar="X",
        help="with shapes: also decode with a draft of the first shape, right at this rate",
    )
    parser.add_argument(
        "--architecture",
        choices=("gpt2", "llama"),
        default="gpt2",
        help="of the shapes (default: gpt2)",
    )
    parser.add_argument(
        "--device", default="cpu", help="where to decode, such as cuda (default: cpu)"
    )
    add_count(parser, "--batch", [1], "sequences in a batch")
    add_count(parser, "--window", 256, "block_size of the shapes")
    add_count(parser, "--prompt-length", 16, "tokens of the prompt")
    add_count(parser, "--tokens", 240, "tokens sampled after the prompt; 1: prefill only")
    add_count(parser, "--rounds", 5, "rounds")
    parser.add_argument(
        "--temperature",
        type=at_least(0, float),
        default=0.8,
        metavar="X",
        help="0: greedy (default: 0.8)",
    )
    parser.add_argument(
        "--hf", action="store_true", help="also measure Hugging Face: `generate` with a cache"
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="also measure gpt-fast's way: torch.compile with a static cache, mode reduce-overhead",
    )
    parser.add_argument(
        "--llama-cpp",
        nargs="?",
        const=sys.executable,
        metavar="PYTHON",
        help="also measure llama.cpp, float32 and Q8_0, with the Python that has llama_cpp and "
        "gguf (default: this one)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure one model size and batch after another.

    Within one, all backends and peers in interleaved rounds.
    """
    _check(arguments)
    shapes = arguments.shapes or ("4/4/128", "6/6/384")
    configs = {f"{arguments.architecture} {shape}": config_of(shape, arguments) for shape in shapes}

    from benchmarks.decoders import drafted, from_checkpoint, from_shape, ours, peers
    from benchmarks.drafts import simulated
    from gpt.system.device import choose_device, keep_freed_memory

    keep_freed_memory()  # for all alike, as sample.py does
    run = RunConfig(device=arguments.device)
    facts = describe("decode", arguments, run)
    length = arguments.prompt_length
    device = choose_device(run.device)
    if arguments.checkpoint:
        subjects = [from_checkpoint(arguments.checkpoint, length, device)]
    else:
        subjects = [from_shape(name, config, length, device) for name, config in configs.items()]
    tables = []
    results = []
    for subject in subjects:
        with ExitStack() as stack:
            entrants = {name: ours(name, subject) for name in arguments.variants}
            if arguments.draft is not None:
                entrants[f"with {arguments.draft}"] = drafted(subject, arguments.draft, device)
            elif arguments.draft_rate is not None and subject is not subjects[0]:
                name = f"draft right at {arguments.draft_rate:g}"
                entrants[name] = simulated(subject, subjects[0], arguments.draft_rate)
            entrants |= peers(subject.model, stack, arguments)
            for batch in arguments.batch:
                rows = measure(entrants, subject, batch, arguments)
                window = subject.model.config.block_size
                size = f"{batch} x ({length} + {arguments.tokens}) tokens"
                title = f"{subject.name}, window {window}, {size}"
                tables.append(make_table(title, rows, COLUMNS, ""))
                shared = {"model": subject.name, "window": window, "batch": batch, "prompt": length}
                results.append({**shared, "tokens": arguments.tokens, "rows": rows})
    tables[-1] = replace(tables[-1], note=NOTE)  # below the last table, once for all
    settings = {"temperature": arguments.temperature, "rounds": arguments.rounds}
    return finish(arguments, tables, {**facts, **settings, "results": results})


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if options do not go together, or a peer is missing."""
    has_peers = any((arguments.shapes, arguments.hf, arguments.compiled, arguments.llama_cpp))
    if arguments.checkpoint is not None and has_peers:
        raise ConfigError(
            "--checkpoint has no peers, and goes without --shapes, --hf, --compiled, --llama-cpp"
        )
    if arguments.draft is not None and arguments.checkpoint is None:
        raise ConfigError("--draft guesses for a trained model; give its run by --checkpoint")
    if arguments.draft_rate is not None and arguments.checkpoint is not None:
        raise ConfigError("--draft-rate is for shapes; a run has its draft by --draft")
    if arguments.compiled and arguments.prompt_length + arguments.tokens > arguments.window:
        raise ConfigError(
            f"--compiled does not move its window of {arguments.window} tokens; "
            "lower --tokens or --prompt-length"
        )
    if arguments.llama_cpp is not None:
        length = arguments.prompt_length + arguments.tokens
        if arguments.architecture != "llama":
            raise ConfigError("--llama-cpp needs --architecture llama")
        if length > arguments.window:
            reason = f"--llama-cpp does not move its window of {arguments.window} tokens"
            raise ConfigError(f"{reason}; these are {length}")

        from benchmarks.llama_cpp import check_llama_cpp

        check_llama_cpp(arguments.llama_cpp)
    if arguments.hf:
        check_installed("--hf", "transformers")


def config_of(shape: str, arguments: argparse.Namespace) -> ModelConfig:
    """Return the configuration of a shape such as 4/4/128, or raise ConfigError if it is none."""
    try:
        layers, heads, width = (int(part) for part in shape.split("/"))
    except ValueError:
        raise ConfigError(
            f"--shapes {shape}: expected layers/heads/width such as 4/4/128"
        ) from None
    fields: dict[str, Any] = {
        "n_layer": layers,
        "n_head": heads,
        "n_embd": width,
        "block_size": arguments.window,
        "vocab_size": 65,  # as many characters as Tiny Shakespeare has
    }
    if arguments.architecture == "llama":
        # a gated MLP of 8/3 of the width has as many parameters as one of 4 times the width without
        # a gate
        blocks = math.ceil(width * 8 / 3 / Q8_0_BLOCK)
        fields |= {**LLAMA, "mlp_width": blocks * Q8_0_BLOCK}
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"--shapes {shape}: {error.errors()[0]['msg']}") from None


def measure(
    entrants: "Mapping[str, Entrant]", subject: "Subject", batch: int, arguments: argparse.Namespace
) -> dict[str, Row]:
    """Let all entrants decode the same prompts in interleaved rounds, and return their rows for
    JSON.

    The first round does not count: caches are cold, and kernels may be compiled.
    """
    idx = subject.prompts(batch)
    params = SamplingParams(max_new_tokens=arguments.tokens, temperature=arguments.temperature)
    ticks: dict[str, list[list[float]]] = {}
    report(f"{subject.name}, batch {batch}: the first round does not count")
    for number, name in interleave(list(entrants), arguments.rounds + 1, report):
        clock = entrants[name].decode(idx, params.model_copy(update={"seed": number}))
        if number > 0:
            ticks.setdefault(name, []).append(clock)
    config = subject.model.config
    return {name: row_of(name, entrants, ticks, config, batch, arguments) for name in entrants}


def row_of(
    name: str,
    entrants: "Mapping[str, Entrant]",
    ticks: Mapping[str, list[list[float]]],
    config: ModelConfig,
    batch: int,
    arguments: argparse.Namespace,
) -> Row:
    """Return what was measured of one entrant: seconds of each round, rates, and ratios to
    `times_of`.

    Args:
        ticks: for each entrant the clock in each round, see `Decode`.
    """
    from gpt.extras.accounting.bandwidth import measure_bandwidth
    from gpt.generation.kv_cache import cache_bytes
    from gpt.system.device import choose_device

    entrant = entrants[name]
    prompt = arguments.prompt_length
    tokens = arguments.tokens
    device = choose_device(arguments.device)
    seconds = [clock[-1] - clock[0] for clock in ticks[name]]
    baseline = _baseline(name, entrants)
    baseline_seconds = [clock[-1] - clock[0] for clock in ticks[baseline]]
    # a clock without steps shows the first token only where there is no other
    first = [clock[1] - clock[0] for clock in ticks[name] if len(clock) > 2 or tokens == 1]
    first_seconds = statistics.median(first) if first else None
    prompt_rate = None if first_seconds is None else batch * prompt / first_seconds
    mean_keys = min(prompt + tokens // 2, config.block_size)  # that a step reads
    read = entrant.matrix_bytes + cache_bytes(config, batch, mean_keys, "fp32")
    steps_per_second = tokens / statistics.median(seconds)
    return {
        "weights": entrant.weights,
        "tokens_per_second": steps_per_second * batch,
        "prompt_tokens_per_second": prompt_rate,
        "first_seconds": first_seconds,
        "bytes_per_second": steps_per_second * read,
        "bandwidth_share": steps_per_second * read / measure_bandwidth(device, read),
        "seconds": seconds,
        "times_of": baseline,
        "times": ratios(baseline_seconds, seconds),
    }


def _baseline(name: str, entrants: "Mapping[str, Entrant]") -> str:
    """Return the row that an entrant is compared with: our first one, for a peer with the same
    weights if there is one.
    """
    ours = [key for key, other in entrants.items() if not other.is_peer]
    if entrants[name].is_peer:
        for key in ours:
            if entrants[key].weights == entrants[name].weights:
                return key
    return ours[0]
