"""Print results as tables for a terminal, or as one JSON object."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt.extras.inspection.rendering.tables import Table


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def print_view(
    arguments: argparse.Namespace, title: str, tables: Iterable[Table], summary: Mapping[str, Any]
) -> None:
    """Print a title and the tables, or with `--json` the same data as a summary."""
    if arguments.json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        print("\n\n".join([title, *map(repr, tables)]))


def human_count(number: float, unit: str = "") -> str:
    """Format a number with three digits and a decimal prefix: 124,439,808 is `124 M`, with a unit
    `124 MFLOPs`.
    """
    digits, prefix = _scaled(number, 1000, ("", "k", "M", "G", "T", "P"))
    return f"{digits} {prefix}{unit}".rstrip()


def human_bytes(number: float) -> str:
    """Format bytes with three digits and a binary prefix: 1,572,864 is `1.50 MiB`."""
    digits, prefix = _scaled(number, 1024, ("", "Ki", "Mi", "Gi", "Ti"))
    return f"{digits} {prefix}B"


def _scaled(number: float, base: int, prefixes: Sequence[str]) -> tuple[str, str]:
    """Return three digits and the prefix of the unit; without a prefix, a whole number has all its
    digits.
    """
    value, power = float(number), 0
    while value >= 999.5 and power < len(prefixes) - 1:
        value, power = value / base, power + 1
    is_whole = power == 0 and value == int(value)
    decimals = 0 if is_whole or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{decimals}f}", prefixes[power]
