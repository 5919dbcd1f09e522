"""The parser of one view."""

import argparse
from typing import Any

from gpt.cli.common import parser_format


def add_view(subparsers: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """The parser of one view, which ends its help with an example.

    Args:
        subparsers: of the command.
        name: of the view.
        summary: one line, for the command's help and the view's own.
        example: options that follow the name.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=summary, **parser_format(summary, f"python scripts/explain.py {name} {example}")
    )
    return parser
