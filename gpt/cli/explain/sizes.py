"""How many tokens a view counts: `--batch` and `--seq`."""

import argparse

from gpt.cli.explain.ranges import check_range

LARGEST_BATCH = 1_000_000
"""More would count bytes past what a 64-bit number holds."""


def add_size_options(parser: argparse.ArgumentParser, batch: str, seq: str) -> None:
    """`--batch` and `--seq`, with what each is where it is left out."""
    parser.add_argument("--batch", type=int, metavar="B", help=f"sequences (default: {batch})")
    parser.add_argument("--seq", type=int, metavar="T", help=f"tokens of each (default: {seq})")


def check_batch(arguments: argparse.Namespace) -> None:
    """Refuse a batch that none has, before a model is looked for.

    Raises:
        ConfigError: it is such a one.
    """
    if arguments.batch is not None:
        check_range("--batch", arguments.batch, 1, LARGEST_BATCH, "sequences")


def read_size(arguments: argparse.Namespace, batch: int, length: int, block_size: int) -> tuple[int, int]:
    """Batch B and length T that were asked for, or these.

    Raises:
        ConfigError: the model takes no such length.
    """
    batch = batch if arguments.batch is None else arguments.batch
    length = length if arguments.seq is None else arguments.seq
    check_range("--seq", length, 1, block_size, "block_size")
    return batch, length
