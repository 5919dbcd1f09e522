"""How a measurement ends: tables for a reader, then one line of JSON for a program."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt.cli.tables import Table, render_table
from gpt.errors import GPTError
from gpt.files import write_atomic


def describe(benchmark: str, arguments: argparse.Namespace, threads: int, device: str = "cpu") -> dict[str, Any]:
    """The beginning of every result: what was measured, on what."""
    from benchmarks.machine import describe_machine

    return {
        "benchmark": benchmark,
        **describe_machine(device),
        "threads": threads,
        "config": arguments.config,
        "overrides": arguments.overrides,
    }


def finish(arguments: argparse.Namespace, tables: Sequence[Table], result: Mapping[str, Any]) -> int:
    """Print the tables and the result, and write it where `--json` says.

    Args:
        arguments: with `json`.
        tables: their titles get the class of the processor.
        result: begins with what `describe` gave.

    Raises:
        GPTError: it cannot be written; it was printed before.
    """
    place = f"{result['machine']['class']}, {result['threads']} threads"
    for table in tables:
        print(f"{table.title} [{place}]", render_table(table.header, table.rows, table.align), sep="\n")
        print(f"{table.note}\n" if table.note else "")
    line = json.dumps(result)
    print(line, flush=True)
    if arguments.json is not None:
        try:
            write_atomic(Path(arguments.json), f"{line}\n".encode())
        except OSError as error:
            raise GPTError(f"cannot write {arguments.json}: {error.strerror or error}") from None
    return 0
