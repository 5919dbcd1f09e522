"""`scripts/explain.py mathematics`: the formulas of a block, as a page to read."""

import argparse
from typing import Any

from gpt.cli.common import add_command
from gpt.cli.explain.outputs import add_page_option, write_page


def add_parser(subparsers: Any) -> None:
    """Add this view and its options."""
    parser = add_command(
        subparsers,
        "mathematics",
        "Write every formula of a block, forward and backward, as a Markdown page.",
        "python scripts/explain.py mathematics --output mathematics.md",
    )
    add_page_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from gpt.inspection.rendering.mathematics_page import mathematics_page

    write_page(arguments, mathematics_page())
    return 0
