"""Sample whole items, and mark those that stand in the text that the model was trained on."""

import argparse
import json
import sys
from collections.abc import Sequence
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
    from gpt.generation.batch import sample_texts

    wanted = arguments.num_samples or NUM_ITEMS
    # most samples may be known, so that more of them may be needed than are wanted
    num_samples = wanted * MAX_TRIES if arguments.new else wanted
    seeds = range(params.seed, params.seed + num_samples)
    for prompt in prompts:
        written = 0
        texts = sample_texts(runtime, tokenizer, prompt, params, seeds)
        for seed, text in zip(seeds, texts, strict=True):
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
                f"{written} new items in {num_samples:,} samples; raise --temperature, or "
                "take an earlier checkpoint"
            )


def _print_item(item: str, is_known: bool) -> None:
    """Print an item; those with several lines are followed by an empty one."""
    text = escape_controls(item) if sys.stdout.isatty() else item
    end = "\n\n" if "\n" in item else "\n"
    mark = KNOWN if is_known else ""
    sys.stdout.write(text + mark + end)
    sys.stdout.flush()
