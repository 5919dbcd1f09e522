"""`scripts/explain.py mathematics`: the formulas of a block, as a page to read."""

import argparse
from typing import Any

from gpt.cli.explain.outputs import add_page_option, write_page
from gpt.cli.explain.view import add_view


def add_parser(subparsers: Any) -> None:
    """The options of this view."""
    parser = add_view(
        subparsers,
        "mathematics",
        "every formula of a block, forward and backward, as a Markdown page",
        "--output mathematics.md",
    )
    add_page_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from gpt.inspection.mathematics_page import mathematics_page

    write_page(arguments, mathematics_page())
    return 0
