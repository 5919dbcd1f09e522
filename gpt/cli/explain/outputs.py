"""Pictures and pages as files."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.errors import GPTError
from gpt.files import write_atomic

if TYPE_CHECKING:
    from gpt.inspection.views import View


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--png` and `--html`."""
    parser.add_argument("--png", metavar="FILE", help="draw it into this PNG file")
    parser.add_argument("--html", metavar="FILE", help="write it as a page that needs no network")


def write_outputs(
    arguments: argparse.Namespace, kind: str, view: "View", title: str, source: str, draw: Callable[[Any], Any]
) -> bool:
    """Write the files that were asked for and print their names; whether there were any.

    Args:
        arguments: with the options of `add_output_options`.
        kind: of page.
        view: what it shows.
        title: of the page.
        source: which model it is of.
        draw: from the module `gpt.inspection.pictures` to a figure.

    Raises:
        GPTError: one cannot be drawn or written.
    """
    if arguments.png is not None:
        from gpt.inspection import pictures

        write_file(arguments.png, pictures.to_png(draw(pictures)))
        print(arguments.png)
    if arguments.html is not None:
        from gpt.inspection.pages import render_page

        write_file(arguments.html, render_page(kind, view, title, source).encode())
        print(arguments.html)
    return arguments.png is not None or arguments.html is not None


def write_file(name: str, content: bytes) -> None:
    """Write a file, or leave what is there as it is.

    Raises:
        GPTError: it cannot be written.
    """
    try:
        write_atomic(Path(name), content)
    except OSError as error:
        raise GPTError(f"cannot write {name}: {error.strerror or error}") from None
