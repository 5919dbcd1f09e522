"""The text that a view is about, and changes to the model that reads it."""

import argparse
import math
from typing import TYPE_CHECKING

from gpt.cli.common import STANDARD_INPUT, read_text
from gpt.cli.explain.ranges import check_positive
from gpt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.inspection.tracing.activations import Edits

MOST_MEMORY = 1_000_000
"""GiB; more is a slip."""


def add_prompt_option(parser: argparse.ArgumentParser) -> None:
    """`--prompt`."""
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to look at; - reads standard input")


def add_memory_option(parser: argparse.ArgumentParser) -> None:
    """`--memory-limit`."""
    parser.add_argument(
        "--memory-limit", type=float, default=4.0, metavar="GIB", help="most memory for activations (default: 4 GiB)"
    )


def add_edit_option(parser: argparse.ArgumentParser) -> None:
    """`--edit`, to see what an activation or a head is for."""
    parser.add_argument(
        "--edit",
        action="append",
        default=[],
        metavar="NAME[:HEAD]=FACTOR",
        help="multiply an activation, or one head of it, by FACTOR (0: ablate it), "
        "for example blocks.0.attn.hook_z:2=0; may be repeated",
    )


def read_ids(arguments: argparse.Namespace, loaded: "Loaded", fewest: int = 1) -> "Tensor":
    """Ids (T,) of the prompt, on the model's device.

    Raises:
        InputError: too few of them, or more than the window holds.
        DataError: characters that the model does not know.
    """
    import torch

    from gpt.data.text import convert_newlines

    prompt = read_text(STANDARD_INPUT) if arguments.prompt == "-" else arguments.prompt
    prompt = convert_newlines(prompt, loaded.config.data.newlines)
    ids = torch.tensor(loaded.tokenizer.encode(prompt).tolist(), dtype=torch.long)
    window = loaded.config.model.block_size
    if len(ids) < fewest:
        wanted = f"at least {fewest} tokens" if fewest > 1 else "some text"
        raise InputError(f"the prompt has {len(ids)} token{'s' * (len(ids) != 1)}; this view needs {wanted}")
    if len(ids) > window:
        raise InputError(f"the prompt has {len(ids)} tokens, more than the window of {window}; shorten it")
    return ids.to(loaded.model.wte.weight.device)


def memory_limit_bytes(arguments: argparse.Namespace) -> int:
    """Return the limit in bytes.

    Raises:
        ConfigError: it is not above 0.
    """
    check_positive("--memory-limit", arguments.memory_limit, MOST_MEMORY)
    return round(arguments.memory_limit * 2**30)


def read_edits(arguments: argparse.Namespace) -> "Edits":
    """Return the edits of `--edit`.

    Raises:
        InputError: one is not NAME=FACTOR or NAME:HEAD=FACTOR.
    """
    from gpt.inspection.tracing.edits import Edit, scale, zero

    edits: dict[str, list[Edit]] = {}
    for text in arguments.edit:
        target, _, factor = text.rpartition("=")
        name, colon, head = target.partition(":")
        try:
            number, which = float(factor), int(head) if colon else None
            if not math.isfinite(number):
                raise ValueError
        except ValueError:
            raise InputError(f"--edit {text}: expected NAME=FACTOR or NAME:HEAD=FACTOR") from None
        edits.setdefault(name, []).append(scale(number, which) if number else zero(which))
    return edits
