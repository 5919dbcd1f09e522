"""Sample whole items, and mark those that stand in the text that the model was trained on."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.sample_writers import escape_controls
from gpt.config import SamplingParams
from gpt.system.errors import ConfigError, GenerationError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded
    from gpt.data import Tokenizer
    from gpt.generation.runtime import Runtime

NUM_ITEMS = 20
"""Items that are written where no number is given: a screen full."""
BATCH_SIZE = 64
"""Items computed side by side, as in `gpt.cli.sample`."""
MAX_TRIES = 100
"""Samples for each new item that is asked for.

A model that needs more has hardly learned more than to repeat its text.
"""
KNOWN = "  (in the training text)"
"""Mark after an item that the model has read."""


def known_items(loaded: "Loaded", only_new: bool) -> frozenset[str]:
    """Return the items of the training split.

    If its tokens are gone, a line is reported, and no item counts as known.

    Raises:
        ConfigError: they are gone, and only new ones are asked for.
    """
    from gpt.checkpoint.corpus import training_dataset, training_items

    try:
        return training_items(training_dataset(loaded))
    except ConfigError as error:
        if only_new:
            raise ConfigError(f"--new needs the items of the training: {error}") from None
        report(f"items of the training text are not marked: {error}")
        return frozenset()


def write_items(
    arguments: argparse.Namespace,
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    prompts: Sequence[str],
    params: SamplingParams,
    known: frozenset[str],
) -> None:
    """Write `num_samples` items that begin with each prompt, as text or as JSON.

    Raises:
        GenerationError: with --new, hardly any sample is new.
    """
    wanted = arguments.num_samples or NUM_ITEMS
    for prompt in prompts:
        written = 0
        for seed, text in _sampled(runtime, tokenizer, prompt, params, wanted, arguments.new):
            item = prompt + text
            is_known = item in known
            is_new = item != "" and not is_known
            if arguments.new and not is_new:
                continue
            if arguments.json:
                row = {"prompt": prompt, "text": text, "seed": seed, "known": is_known}
                print(json.dumps(row, ensure_ascii=False), flush=True)
            else:
                _print_item(item, is_known)
            written += 1
            if written == wanted:
                break
        if written < wanted:
            raise GenerationError(
                f"{written} new items in {MAX_TRIES * wanted:,} samples; raise --temperature, or "
                "take an earlier checkpoint"
            )


def _sampled(
    runtime: "Runtime",
    tokenizer: "Tokenizer",
    prompt: str,
    params: SamplingParams,
    wanted: int,
    only_new: bool,
) -> Iterator[tuple[int, str]]:
    """Yield seeds and the texts that they give, as many as may be needed.

    Args:
        wanted: how many texts are to be written.
        only_new: whether only new ones are; as most samples may be known, more are yielded.
    """
    from gpt.generation.batch import TextBatch

    num_samples = wanted * MAX_TRIES if only_new else wanted
    end = params.seed + num_samples
    for begin in range(params.seed, end, BATCH_SIZE):
        seeds = range(begin, min(begin + BATCH_SIZE, end))
        texts = [""] * len(seeds)
        for chunk in TextBatch(runtime, tokenizer, [prompt] * len(seeds), params, seeds):
            texts[chunk.row] += chunk.text
        yield from zip(seeds, texts, strict=True)


def _print_item(item: str, is_known: bool) -> None:
    """Print an item; those with several lines are followed by an empty one."""
    text = escape_controls(item) if sys.stdout.isatty() else item
    end = "\n\n" if "\n" in item else "\n"
    mark = KNOWN if is_known else ""
    sys.stdout.write(text + mark + end)
    sys.stdout.flush()
