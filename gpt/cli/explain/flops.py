"""`gpt explain flops`: FLOPs of training and generation."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt.cli.explain.options import (
    add_model_options,
    add_size_options,
    check_range,
    find_config,
    read_size,
)
from gpt.cli.tables import human_count, print_view
from gpt.config import Config, ModelConfig
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

    # The check of the options comes first: these modules load torch, which takes seconds.
    from gpt.extras.accounting.generation_flops import GenerationFlops

    training_table, training_summary = _training(model, batch, length)
    tables = [training_table]
    summary = {"source": source, **training_summary}
    if arguments.published is None:  # how long a published model was trained is not known here
        whole_table, whole_summary = _whole_training(config)
        tables.append(whole_table)
        summary["whole_training"] = whole_summary
    generation_summary = None
    if new > 0:
        generation = GenerationFlops(model, prompt, new)
        steps = _steps(generation)
        tables.append(_generation_table(generation, steps))
        generation_summary = _generation_summary(generation, steps)
    summary["generation"] = generation_summary
    print_view(arguments, source, tables, summary)


def _prompt_and_new(arguments: argparse.Namespace, block_size: int) -> tuple[int, int]:
    """Return the numbers of prompt tokens and of new tokens, which together fit the window.

    A window of one token has no room for a new one: then there are 1 and 0.
    """
    prompt = arguments.prompt_tokens
    new = arguments.new_tokens
    if block_size == 1:
        if prompt is not None or new is not None:
            raise ConfigError(
                "block_size 1 has no room for new tokens; "
                "leave out --prompt-tokens and --new-tokens"
            )
        return 1, 0

    reason = "what block_size leaves"
    if new is not None:  # before the default of the prompt is computed from it
        check_range("--new-tokens", new, 1, block_size - 1, reason)
    if prompt is None:
        rest = block_size - (new or 0)
        prompt = max(1, rest // 2)
    check_range("--prompt-tokens", prompt, 1, block_size - 1, reason)
    if new is None:
        new = block_size - prompt
    check_range("--new-tokens", new, 1, block_size - prompt, reason)
    return prompt, new


def _training(model: ModelConfig, batch: int, length: int) -> tuple[Table, dict[str, Any]]:
    """Return the table of a training step, and its part of the summary."""
    from gpt.model.flops import flops_by_part, training_flops

    parts = flops_by_part(model, batch, length, length)
    forward = sum(parts.values())
    step = training_flops(model, batch, length)
    passes = {"forward": forward, "backward": step - forward, "training_step": step}
    tokens = batch * length
    rows = _shares(parts, forward, tokens) + _shares(passes, step, tokens)
    header = ("part", "FLOPs", "FLOPs/token", "share")
    note = "Shares: of the forward pass for its three parts, of the training step for the passes."
    title = f"Training: matmuls of {batch:,} × {length:,} tokens; a multiply-add counts as 2 FLOPs"
    summary = {"batch": batch, "seq": length, "forward_parts": parts, **passes}
    return Table(title, header, rows, "<>>>", note), summary


def _whole_training(config: Config) -> tuple[Table, dict[str, Any]]:
    """Return the table of all steps of a training, by length of sequence, and its part of the
    summary.

    A step reads the same number of tokens at each length, and its attention is cheaper where
    `train.length_warmup` cuts them into shorter sequences.
    """
    from gpt.model.flops import training_flops

    tokens = config.train.sequences * config.model.block_size
    rows: list[tuple[str, ...]] = []
    total = 0
    for length, steps in config.sequence_lengths():
        flops = steps * training_flops(config.model, tokens // length, length)
        total += flops
        rows.append((f"{length:,}", f"{steps:,}", f"{flops:,}"))
    rows.append(("total", f"{config.train.max_steps:,}", f"{total:,}"))
    header = ("sequence length", "steps", "FLOPs")
    title = f"Training: all steps of {tokens:,} tokens, {total / 1e12:,.3g} TFLOP"
    summary = {"steps": config.train.max_steps, "flops": total}
    return Table(title, header, rows, "<>>"), summary


def _shares(flops_by_name: dict[str, int], whole: int, tokens: int) -> list[tuple[str, ...]]:
    """Return a row for each name: its FLOPs in all, per token, and as a share of a whole."""
    rows: list[tuple[str, ...]] = []
    for name, flops in flops_by_name.items():
        words = name.replace("_", " ")
        per_token = human_count(flops / tokens)
        share = 100 * flops / whole
        rows.append((words, f"{flops:,}", per_token, f"{share:.1f} %"))
    return rows


def _steps(generation: "GenerationFlops") -> list[dict[str, int]]:
    """Return the FLOPs of steps 1, 2, 4, 8, ... and of the last one.

    A table of all steps could have thousands of rows.
    """
    powers_of_two = {1 << power for power in range(generation.new.bit_length())}
    steps = []
    for step in sorted(powers_of_two | {generation.new}):
        naive = generation.naive_step(step)
        cached = generation.cached_step(step)
        steps.append({"step": step, "naive": naive, "cached": cached})
    return steps


def _generation_table(generation: "GenerationFlops", steps: Sequence[dict[str, int]]) -> Table:
    """Return the table of generating: the prompt, some steps and the total."""
    prompt = generation.prompt
    rows = [("prompt", f"{prompt:,}", "", f"{generation.prefill:,}", "")]
    for flops in steps:
        number = flops["step"]
        naive = flops["naive"]
        cached = flops["cached"]
        ratio = f"{naive / cached:,.1f}"
        rows.append((f"{number:,}", f"{prompt + number:,}", f"{naive:,}", f"{cached:,}", ratio))
    naive = generation.naive
    cached = generation.cached
    rows.append(("total", "", f"{naive:,}", f"{cached:,}", f"{naive / cached:,.1f}"))

    naive_positions = generation.naive_positions
    cached_positions = generation.cached_positions
    note = (
        "Step i attends to the prompt and i new tokens: "
        "without a cache all of them go through the\n"
        "model, with one only the newest. "
        "Step 1 feeds the first new token back; sampling does not\n"
        "feed the last one back and saves that step.\n"
        f"Positions computed: {naive_positions:,} without a cache, {cached_positions:,} with one: "
        f"{naive_positions / cached_positions:,.1f} to 1."
    )
    header = ("step", "tokens", "FLOPs, no cache", "FLOPs, cached", "ratio")
    title = f"Generating {generation.new:,} tokens after {prompt:,}"
    return Table(title, header, rows, ">>>>>", note)


def _generation_summary(
    generation: "GenerationFlops", steps: Sequence[dict[str, int]]
) -> dict[str, Any]:
    """Return the part of generating of the summary."""
    return {
        "prompt_tokens": generation.prompt,
        "new_tokens": generation.new,
        "prefill": generation.prefill,
        "naive": generation.naive,
        "cached": generation.cached,
        "naive_positions": generation.naive_positions,
        "cached_positions": generation.cached_positions,
        "ratio": generation.naive / generation.cached,
        "steps": steps,
    }
