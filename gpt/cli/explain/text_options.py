"""Options of views of one text: the prompt, edits of activations, a memory limit, and files to write."""

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpt.cli.explain.model_options import load_model
from gpt.cli.shared_options import (
    STANDARD_INPUT,
    add_checkpoint_options,
    not_empty,
    number,
    read_text,
    write_output,
)
from gpt.cli.tables import add_format_options
from gpt.errors import ConfigError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.inspection.tracing.activation_cache import Edits
    from gpt.inspection.views.tokens import View

GIB = 2**30
MAX_MEMORY = 1_000_000
"""Most GiB of `--memory-limit`; more would be a typo."""


def add_prompt_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="text to look at; - reads standard input")


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
    parser.add_argument("--png", type=not_empty, metavar="FILE", help="write a picture to this PNG file")
    add_format_options(parser)


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a view of all layers, which has a page, and keeps activations."""
    parser.add_argument("--html", type=not_empty, metavar="FILE", help="write an HTML page that needs no network")
    gib, limit = number(0, MAX_MEMORY, float, above=True), "most memory for activations (default: 4 GiB)"
    parser.add_argument("--memory-limit", type=gib, default=4.0, metavar="GIB", help=limit)


def open_text(arguments: argparse.Namespace, *ignored: str, fewest: int = 1) -> tuple["Loaded", "Tensor", "Edits"]:
    """Return the model, the ids of the prompt and the edits, after a check of the options of outputs.

    Args:
        arguments: with those of `add_text_options`.
        ignored: attributes of options that a picture, a page and JSON ignore.
        fewest: ids that the view needs.

    Raises:
        GPTError: one of them cannot be had.
    """
    check_outputs(arguments, *ignored)
    edits, loaded = read_edits(arguments), load_model(arguments)
    return loaded, read_ids(arguments, loaded, fewest), edits


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


def read_edits(arguments: argparse.Namespace) -> "Edits":
    """Return the edits given by `--edit`; raise InputError for one of another form."""
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


def check_outputs(arguments: argparse.Namespace, *others: str) -> None:
    """Check the options of outputs, and `others`, which a picture, a page and JSON ignore.

    Raises:
        ConfigError: one option would have no effect with another.
        GPTError: matplotlib is not installed.
    """
    kinds = [name for name in ("png", "html") if getattr(arguments, name, None) is not None]
    formats = [name for name in ("json", "markdown") if getattr(arguments, name)]
    if kinds and formats:
        raise ConfigError(f"--{formats[0]} prints a view that --{kinds[0]} writes to a file; give one")
    for name in others:
        value = getattr(arguments, name)
        given = value is not None and value is not False  # 0 is a position
        if given and (kinds or arguments.json):
            raise ConfigError(f"--{name} has no effect with --{(kinds or formats)[0]}, which has the whole view")
    if arguments.png is not None:
        from gpt.inspection.rendering.pictures import require_matplotlib

        require_matplotlib()


def write_picture(arguments: argparse.Namespace, draw: Callable[[Any], Any]) -> bool:
    """Write the picture if it is requested, print its name, and return whether it is.

    `draw` receives the module `gpt.inspection.rendering.pictures` and returns a figure.

    Raises:
        GPTError: it cannot be drawn or written.
    """
    if arguments.png is not None:
        from gpt.inspection.rendering import pictures

        write_output(arguments.png, pictures.to_png(draw(pictures)))
        print(arguments.png)
    return arguments.png is not None


def write_outputs(
    arguments: argparse.Namespace, kind: str, view: "View", title: str, source: str, draw: Callable[[Any], Any]
) -> bool:
    """Write the picture, see `write_picture`, and the page as far as they are requested; return whether one is."""
    is_drawn = write_picture(arguments, draw)
    if arguments.html is not None:
        from gpt.inspection.rendering.pages import render_page

        write_output(arguments.html, render_page(kind, view, title, source).encode())
        print(arguments.html)
    return is_drawn or arguments.html is not None
