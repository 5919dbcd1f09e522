"""`gpt explain flops`: FLOPs of training and generation."""

import argparse
from typing import TYPE_CHECKING, Any

from gpt.cli.explain.options import (
    add_model_options,
    add_size_options,
    check_range,
    find_config,
    read_size,
)
from gpt.cli.tables import human_count, print_view
from gpt.config import ModelConfig
from gpt.extras.inspection.rendering.tables import Table
from gpt.system.errors import ConfigError

if TYPE_CHECKING:
    from gpt.extras.accounting.generation_flops import GenerationFlops

SUMMARY = "Count the FLOPs of training and of generation, with and without a cache."
EXAMPLE = "--published llama-2-7b --prompt-tokens 50 --new-tokens 100"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_size_options(parser)
    parser.add_argument(
        "--prompt-tokens", type=int, metavar="P", help="default: half the rest of block_size"
    )
    parser.add_argument(
        "--new-tokens", type=int, metavar="N", help="default: the rest of block_size"
    )


def run(arguments: argparse.Namespace) -> None:
    config, source = find_config(arguments)
    model = config.model
    batch, length = read_size(arguments, config)
    prompt, new = _prompt_and_new(arguments, model.block_size)

    from gpt.extras.accounting.generation_flops import GenerationFlops

    training, summary = _training(model, batch, length)
    tables, summary["generation"] = [training], None
    if new:
        table, summary["generation"] = _generation(GenerationFlops(model, prompt, new))
        tables.append(table)
    print_view(arguments, source, tables, {"source": source, **summary})


def _prompt_and_new(arguments: argparse.Namespace, block_size: int) -> tuple[int, int]:
    """Return the numbers of prompt and new tokens, together at most `block_size`; no new ones if that is 1."""
    prompt, new = arguments.prompt_tokens, arguments.new_tokens
    reason = "what block_size leaves"
    if block_size == 1:
        if prompt is not None or new is not None:
            raise ConfigError(
                "block_size 1 has no room for new tokens; leave out --prompt-tokens and --new-tokens"
            )
        return 1, 0
    if new is not None:
        check_range("--new-tokens", new, 1, block_size - 1, reason)
    if prompt is None:
        prompt = max(1, (block_size - (new or 0)) // 2)
    check_range("--prompt-tokens", prompt, 1, block_size - 1, reason)
    if new is None:
        new = block_size - prompt
    check_range("--new-tokens", new, 1, block_size - prompt, reason)
    return prompt, new


def _training(model: ModelConfig, batch: int, length: int) -> tuple[Table, dict[str, Any]]:
    from gpt.model.flops import flops_by_part, training_flops

    parts = flops_by_part(model, batch, length, length)
    step, forward = training_flops(model, batch, length), sum(parts.values())
    sums = {"forward": forward, "backward": step - forward, "training_step": step}
    rows = [
        (
            name.replace("_", " "),
            f"{flops:,}",
            human_count(flops / (batch * length)),
            f"{100 * flops / whole:.1f} %",
        )
        for entries, whole in ((parts, forward), (sums, step))
        for name, flops in entries.items()
    ]
    note = "Shares: of the forward pass for its three parts, of the training step for the passes."
    title = f"Training: matmuls of {batch:,} × {length:,} tokens; a multiply-add counts as 2 FLOPs"
    table = Table(title, ("part", "FLOPs", "FLOPs/token", "share"), rows, "<>>>", note)
    return table, {"batch": batch, "seq": length, "forward_parts": parts, **sums}


def _generation(generation: "GenerationFlops") -> tuple[Table, dict[str, Any]]:
    """Return the table of some steps, 1, 2, 4, ... and the last, and its part of the summary."""
    prompt, new, naive, cached = (
        generation.prompt,
        generation.new,
        generation.naive,
        generation.cached,
    )
    shown = sorted({1 << power for power in range(new.bit_length())} | {new})
    steps = [
        {"step": i, "naive": generation.naive_step(i), "cached": generation.cached_step(i)}
        for i in shown
    ]
    rows = [("prompt", f"{prompt:,}", "", f"{generation.prefill:,}", "")]
    for one in steps:
        ratio = one["naive"] / one["cached"]
        cells = (
            f"{one['step']:,}",
            f"{prompt + one['step']:,}",
            f"{one['naive']:,}",
            f"{one['cached']:,}",
        )
        rows.append((*cells, f"{ratio:,.1f}"))
    rows.append(("total", "", f"{naive:,}", f"{cached:,}", f"{naive / cached:,.1f}"))
    positions = generation.naive_positions, generation.cached_positions
    note = (
        "Step i attends to the prompt and i new tokens: without a cache all of them go through the\n"
        "model, with one only the newest. Step 1 feeds the first new token back; sampling does not\n"
        "feed the last one back and saves that step.\n"
        f"Positions computed: {positions[0]:,} without a cache, {positions[1]:,} with one: "
        f"{positions[0] / positions[1]:,.1f} to 1."
    )
    header = ("step", "tokens", "FLOPs, no cache", "FLOPs, cached", "ratio")
    summary = {
        "prompt_tokens": prompt,
        "new_tokens": new,
        "prefill": generation.prefill,
        "naive": naive,
    }
    summary |= {"cached": cached, "naive_positions": positions[0], "cached_positions": positions[1]}
    table = Table(f"Generating {new:,} tokens after {prompt:,}", header, rows, ">>>>>", note)
    return table, {**summary, "ratio": naive / cached, "steps": steps}
