"""Print results as tables for a terminal, or as one JSON object."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt.extras.inspection.rendering.tables import Table, fill

TINTS = (60, 61, 62, 63)
"""Backgrounds from gray to blue, as numbers of the 256 colors of a terminal.

White text has a contrast of at least 4.5:1 on each, and each stands out from black and from white.
"""
WHITE = 231
"""The number of white in the same 256 colors."""


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def print_view(
    arguments: argparse.Namespace, title: str, tables: Iterable[Table], summary: Mapping[str, Any]
) -> None:
    """Print a title and the tables, or with `--json` the same data as a summary."""
    if arguments.json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        width = terminal_width()
        texts = [table.text(width) for table in tables]
        print("\n\n".join([fill(title, width), *texts]))


def terminal_width() -> int | None:
    """Return the columns of the terminal; None: standard output is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def shows_tints() -> bool:
    """Return whether standard output is a terminal with colors that the user wants."""
    is_plain = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")  # no-color.org
    return sys.stdout.isatty() and not is_plain


def tint(text: str, strength: float) -> str:
    """Color the background of a text by a strength from 0 to 1, where tints are shown."""
    if not shows_tints():
        return text
    level = shade_level(strength, len(TINTS) + 1)
    if level == 0:
        return text
    return f"\033[38;5;{WHITE};48;5;{TINTS[level - 1]}m{text}\033[0m"


def shade_level(strength: float, levels: int) -> int:
    """Return the number of the shade of a strength from 0 to 1, from 0 to `levels` - 1."""
    return min(int(strength * levels), levels - 1)  # a strength of 1 would be one level beyond


def human_count(number: float, unit: str = "") -> str:
    """Format a number with three digits and a decimal prefix.

    124,439,808 is `124 M`, or with the unit `FLOPs` it is `124 MFLOPs`.
    """
    digits, prefix = _scaled(number, 1000, ("", "k", "M", "G", "T", "P"))
    return f"{digits} {prefix}{unit}".rstrip()


def human_bytes(number: float) -> str:
    """Format bytes with three digits and a binary prefix: 1,572,864 is `1.50 MiB`."""
    digits, prefix = _scaled(number, 1024, ("", "Ki", "Mi", "Gi", "Ti"))
    return f"{digits} {prefix}B"


def _scaled(number: float, base: int, prefixes: Sequence[str]) -> tuple[str, str]:
    """Return a number as three digits and the prefix of its unit.

    Without a prefix, a whole number has all its digits and no decimals.
    """
    value = float(number)
    power = 0
    # From 999.5 on a number would be rounded to 1000, which has four digits.
    while value >= 999.5 and power < len(prefixes) - 1:
        value /= base
        power += 1
    is_whole = power == 0 and value == int(value)
    # Likewise 99.95 is rounded to 100, and 9.995 to 10.
    if is_whole or value >= 99.95:
        decimals = 0
    elif value >= 9.995:
        decimals = 1
    else:
        decimals = 2
    return f"{value:,.{decimals}f}", prefixes[power]
