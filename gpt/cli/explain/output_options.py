"""Options for writing a view to files, as a picture or an HTML page."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli.shared_options import not_empty
from gpt.errors import ConfigError, GPTError
from gpt.files import write_atomic

if TYPE_CHECKING:
    from gpt.inspection.views.tokens import View


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add `--png` and `--html`."""
    parser.add_argument("--png", type=not_empty, metavar="FILE", help="write a picture to this PNG file")
    parser.add_argument("--html", type=not_empty, metavar="FILE", help="write an HTML page that needs no network")


def check_outputs(arguments: argparse.Namespace, *others: str) -> None:
    """Check the options of a view's outputs, before a model is loaded.

    Args:
        arguments: with the options of `add_output_options` and `add_format_options`.
        others: attributes of further options, which a picture, a page and JSON ignore.

    Raises:
        ConfigError: one option would have no effect with another.
        GPTError: matplotlib is not installed.
    """
    kinds = [name for name in ("png", "html") if getattr(arguments, name) is not None]
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


def write_outputs(
    arguments: argparse.Namespace, kind: str, view: "View", title: str, source: str, draw: Callable[[Any], Any]
) -> bool:
    """Write the requested files, print their names, and return whether there were any.

    Args:
        arguments: with the options of `add_output_options`.
        kind: which page.
        view: its data.
        title: the page's title.
        source: name of the checkpoint, for the page.
        draw: receives the module `gpt.inspection.rendering.pictures` and returns a figure.

    Raises:
        GPTError: a file cannot be drawn or written.
    """
    if arguments.png is not None:
        from gpt.inspection.rendering import pictures

        write_file(arguments.png, pictures.to_png(draw(pictures)))
        print(arguments.png)
    if arguments.html is not None:
        from gpt.inspection.rendering.pages import render_page

        write_file(arguments.html, render_page(kind, view, title, source).encode())
        print(arguments.html)
    return arguments.png is not None or arguments.html is not None


def write_file(name: str, content: bytes) -> None:
    """Write a file, atomically.

    Raises:
        GPTError: it cannot be written.
    """
    try:
        write_atomic(Path(name), content)
    except OSError as error:
        raise GPTError(f"cannot write {name}: {error.strerror or error}") from None
