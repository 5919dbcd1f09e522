"""`scripts/bench.py decode`: tokens per second, by model size, batch, backend, weights, and beside peers."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.cli.bench.options import check_counts, check_json, check_peers
from gpt.cli.bench.output import describe, finish
from gpt.cli.common import parser_format
from gpt.config import ModelConfig
from gpt.errors import ConfigError

EXAMPLE = "python scripts/bench.py decode --shapes 4/4/128 6/6/384 --batch 1 64 --hf --nanogpt ../nanoGPT"
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
PROMPT = 16
"""Tokens of the prompt."""


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    summary = "time decoding of several backends and peers in turns, on the same weights"
    parser = subparsers.add_parser("decode", help=summary, **parser_format(f"T{summary[1:]}.", EXAMPLE))
    parser.add_argument(
        "--shapes",
        nargs="+",
        metavar="L/H/C",
        help="layers, heads, width of GPT-2-like models with random weights (default: 4/4/128 6/6/384)",
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
    parser.add_argument("--batch", nargs="+", type=int, default=[1], metavar="N", help="texts at once (default: 1)")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="of the shapes (default: 256)")
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
    check_json(arguments)
    check_peers(arguments.hf or arguments.hf_compiled, arguments.nanogpt)
    if min(arguments.batch) < 1:
        raise ConfigError(f"--batch has {min(arguments.batch)}, expected at least 1")
    if arguments.checkpoint is not None and (
        arguments.shapes or arguments.hf or arguments.hf_compiled or arguments.nanogpt
    ):
        raise ConfigError("--checkpoint has no peers, and goes without --shapes, --hf, --hf-compiled and --nanogpt")
    shapes = {shape: _config(shape, arguments.window) for shape in arguments.shapes or DEFAULT_SHAPES}
    names = [name.strip() for name in arguments.variants.split(",")]
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"--variants: {name!r} is none of {', '.join(VARIANTS)}")
        if arguments.checkpoint is None and name.endswith(("ngram", "lookup")):
            raise ConfigError(f"--variants: {name} needs a --checkpoint, whose text can be guessed")

    import torch

    from gpt.cli.bench.decode_report import NOTE, DecodeSetting, summary_of, table_of
    from gpt.cli.bench.decode_turns import from_checkpoint, from_shape, ours, peers, take_turns
    from gpt.device import keep_freed_memory, measure_matmul_rate

    keep_freed_memory()  # for all alike, as sample.py does
    facts = describe("decode", arguments, torch.get_num_threads())
    rate = measure_matmul_rate(torch.device("cpu"), torch.float32)
    tables, results = [], []
    subjects = (
        [from_checkpoint(arguments.checkpoint, PROMPT)]
        if arguments.checkpoint is not None
        else [from_shape(shape, config, PROMPT) for shape, config in shapes.items()]
    )
    for subject in subjects:
        entrants = [ours(name, subject) for name in names]
        entrants += peers(subject.model, arguments.hf, arguments.hf_compiled, arguments.nanogpt)
        for batch in arguments.batch:
            setting = DecodeSetting(subject.name, subject.prompt, subject.model.config, batch, arguments.tokens, rate)
            timings = take_turns(entrants, setting, arguments.rounds)
            tables.append(table_of(setting, timings))
            results.append(summary_of(setting, timings))
    tables[-1] = replace(tables[-1], note=NOTE)
    return finish(arguments, tables, {**facts, "rounds": arguments.rounds, "results": results})


def _config(shape: str, window: int) -> ModelConfig:
    try:
        layers, heads, width = (int(part) for part in shape.split("/"))
    except ValueError:
        raise ConfigError(f"--shapes {shape}: expected layers/heads/width such as 4/4/128") from None
    try:
        return ModelConfig(n_layer=layers, n_head=heads, n_embd=width, block_size=window, vocab_size=65)
    except ValidationError as error:
        raise ConfigError(f"--shapes {shape}: {error.errors()[0]['msg']}") from None
