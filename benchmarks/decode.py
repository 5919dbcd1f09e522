"""`scripts/bench.py decode`: tokens per second, by model size, batch, backend, weights, and beside peers."""

import argparse
import math
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.options import check_counts, check_json, check_peers
from benchmarks.output import describe, finish
from gpt.cli.common import add_command
from gpt.config import ModelConfig
from gpt.errors import ConfigError

EXAMPLE = "python scripts/bench.py decode --architecture llama --shapes 4/4/128 --batch 1 32 --hf --llama-cpp"
VARIANTS = (
    "eager",
    "eager-no-cache",
    "compiled",
    "native",
    "native-bf16",
    "native-int8",
    "native-int4",
    "native-ngram",
    "native-lookup",
    "native-int8-ngram",
)
DEFAULT_SHAPES = ("4/4/128", "6/6/384")
PEERS = ("hf", "hf_compiled", "nanogpt", "llama_cpp")
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "tie_weights": False},
}
"""What sets `ModelConfig` apart from its defaults."""


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_command(
        subparsers, "decode", "Time decoding by several backends and peers in turns, on the same weights.", EXAMPLE
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        metavar="L/H/C",
        help="layers, heads, width of models with random weights (default: 4/4/128 6/6/384)",
    )
    parser.add_argument(
        "--checkpoint", metavar="PATH", type=Path, help="a trained model instead, which alone can be speculated about"
    )
    parser.add_argument(
        "--variants",
        default="native,eager",
        metavar="A,B,...",
        help=f"of {', '.join(VARIANTS)}; ratios are to the first (default: native,eager)",
    )
    parser.add_argument(
        "--architecture", choices=tuple(ARCHITECTURES), default="gpt2", help="of the shapes (default: gpt2)"
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1], metavar="N", help="sequences at once (default: 1)")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="of the shapes (default: 256)")
    parser.add_argument("--prompt-length", type=int, default=16, metavar="N", help="tokens given (default: 16)")
    parser.add_argument(
        "--tokens", type=int, default=240, metavar="N", help="sampled after the prompt; 1: prefill only (default: 240)"
    )
    parser.add_argument("--temperature", type=float, default=0.8, metavar="X", help="0: greedy (default: 0.8)")
    parser.add_argument("--hf", action="store_true", help="also Hugging Face: its model under generate, with a cache")
    parser.add_argument("--hf-compiled", action="store_true", help="also the same compiled, with a static cache")
    parser.add_argument("--nanogpt", metavar="PATH", type=Path, help="also nanoGPT, from this checkout")
    parser.add_argument(
        "--llama-cpp",
        nargs="?",
        const=sys.executable,
        metavar="PYTHON",
        help="also llama.cpp, float32 and Q8_0, of the Python that has llama_cpp and gguf (default: this one)",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the last line there too")
    parser.set_defaults(run=run, config=None, overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """One model size and batch after the other; within one everybody in turns."""
    names = _check(arguments)
    shapes = {shape: _config(shape, arguments) for shape in arguments.shapes or DEFAULT_SHAPES}

    import torch

    from benchmarks.decode_report import NOTE, DecodeSetting, summary_of, table_of
    from benchmarks.decode_turns import from_checkpoint, from_shape, ours, peers, take_turns
    from gpt.accounting.machine import measure_matmul_rate
    from gpt.allocator import keep_freed_memory

    keep_freed_memory()  # for all alike, as sample.py does
    facts = describe("decode", arguments, torch.get_num_threads())
    rate = measure_matmul_rate(torch.device("cpu"), torch.float32)
    prompt, tokens, temperature = arguments.prompt_length, arguments.tokens, arguments.temperature
    subjects = (
        [from_checkpoint(arguments.checkpoint, prompt)]
        if arguments.checkpoint is not None
        else [from_shape(f"{arguments.architecture} {shape}", config, prompt) for shape, config in shapes.items()]
    )
    tables, results = [], []
    for subject in subjects:
        with ExitStack() as stack:
            entrants = [ours(name, subject) for name in names]
            entrants += peers(subject.model, stack, *(getattr(arguments, name) for name in PEERS))
            for batch in arguments.batch:
                setting = DecodeSetting(subject.name, prompt, subject.model.config, batch, tokens, rate)
                timings = take_turns(entrants, setting, subject.prompts(batch), temperature, arguments.rounds)
                tables.append(table_of(setting, timings))
                results.append(summary_of(setting, timings))
    tables[-1] = replace(tables[-1], note=NOTE)
    settings = {"temperature": temperature, "rounds": arguments.rounds}
    return finish(arguments, tables, {**facts, **settings, "results": results})


def _check(arguments: argparse.Namespace) -> list[str]:
    """The variants, if everything that was asked for can be had.

    Raises:
        ConfigError: it cannot.
    """
    check_counts(arguments, "window", "prompt_length", "tokens", "rounds")
    check_json(arguments)
    if min(arguments.batch) < 1:
        raise ConfigError(f"--batch has {min(arguments.batch)}, expected at least 1")
    if arguments.temperature < 0:
        raise ConfigError(f"--temperature is {arguments.temperature}, expected at least 0")
    has_peers = any(getattr(arguments, name) for name in PEERS)
    if arguments.checkpoint is not None and (arguments.shapes or has_peers):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in ("shapes", *PEERS))
        raise ConfigError(f"--checkpoint has no peers, and goes without {options}")
    _check_llama(arguments)
    check_peers(arguments.hf or arguments.hf_compiled, arguments.nanogpt)
    names = [name.strip() for name in arguments.variants.split(",")]
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"--variants: {name!r} is none of {', '.join(VARIANTS)}")
        if arguments.checkpoint is None and name.endswith(("ngram", "lookup")):
            raise ConfigError(f"--variants: {name} needs a --checkpoint, whose text can be guessed")
    return names


def _check_llama(arguments: argparse.Namespace) -> None:
    is_llama = arguments.architecture == "llama"
    if is_llama and arguments.nanogpt is not None:
        raise ConfigError("--nanogpt has GPT-2's architecture only; take --architecture gpt2")
    if arguments.llama_cpp is None:
        return
    if not is_llama:
        raise ConfigError("--llama-cpp needs --architecture llama")
    length = arguments.prompt_length + arguments.tokens
    if length > arguments.window:
        raise ConfigError(f"--llama-cpp does not move its window of {arguments.window} tokens; these are {length}")

    from benchmarks.llama_cpp import check_llama_cpp

    check_llama_cpp(arguments.llama_cpp)


def _config(shape: str, arguments: argparse.Namespace) -> ModelConfig:
    try:
        layers, heads, width = (int(part) for part in shape.split("/"))
    except ValueError:
        raise ConfigError(f"--shapes {shape}: expected layers/heads/width such as 4/4/128") from None
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "block_size": arguments.window, "vocab_size": 65}
    if arguments.architecture == "llama":
        sizes["mlp_width"] = math.ceil(width * 8 / 3 / 32) * 32  # Q8_0 has blocks of 32
    try:
        return ModelConfig(**sizes, **ARCHITECTURES[arguments.architecture])
    except ValidationError as error:
        raise ConfigError(f"--shapes {shape}: {error.errors()[0]['msg']}") from None
