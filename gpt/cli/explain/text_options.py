"""Options of views of one text: the prompt, edits of activations, a memory limit."""

import argparse
import math
from typing import TYPE_CHECKING

from gpt.cli.explain.output_options import add_output_options
from gpt.cli.explain.size_options import check_positive
from gpt.cli.shared_options import STANDARD_INPUT, add_checkpoint_options, read_text
from gpt.cli.tables import add_format_options
from gpt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.inspection.tracing.activation_cache import Edits

MAX_MEMORY = 1_000_000
"""Most GiB of `--memory-limit`; more would be a typo."""


def add_prompt_option(parser: argparse.ArgumentParser) -> None:
    """Add `--prompt`."""
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to look at; - reads standard input")


def add_memory_option(parser: argparse.ArgumentParser) -> None:
    """Add `--memory-limit`."""
    parser.add_argument(
        "--memory-limit", type=float, default=4.0, metavar="GIB", help="most memory for activations (default: 4 GiB)"
    )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every view of a text: checkpoint, `--prompt`, `--edit`, and the form of output."""
    add_checkpoint_options(parser)
    add_prompt_option(parser)
    parser.add_argument(
        "--edit",
        action="append",
        default=[],
        metavar="NAME[:HEAD]=FACTOR",
        help="multiply an activation, or one head of it, by FACTOR (0: ablate it), "
        "for example blocks.0.attn.hook_z:2=0; may be repeated",
    )
    add_output_options(parser)
    add_format_options(parser)


def read_ids(arguments: argparse.Namespace, loaded: "Loaded", fewest: int = 1) -> "Tensor":
    """Return the ids (T,) int64 of the prompt, on the model's device.

    Raises:
        InputError: there are fewer than `fewest` ids, or more than `block_size`.
        DataError: characters outside the vocabulary.
    """
    import torch

    from gpt.data.tokenizers import convert_newlines

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
    check_positive("--memory-limit", arguments.memory_limit, MAX_MEMORY)
    return round(arguments.memory_limit * 2**30)


def read_edits(arguments: argparse.Namespace) -> "Edits":
    """Return the edits given by `--edit`.

    Raises:
        InputError: an edit is not of the form NAME=FACTOR or NAME:HEAD=FACTOR.
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
