"""Options for sizes: `--batch` and `--seq`, and checks of numbers with one form of error."""

import argparse
import math

from gpt.errors import ConfigError

LARGEST_BATCH = 1_000_000
"""With more, byte counts would overflow 64 bits."""
MAX_PROCESSES = 1_000_000


def check_range(option: str, value: int, least: int, most: int | None = None, reason: str = "") -> None:
    """Check that `least <= value <= most`; None is no limit.

    Args:
        option: name of the option.
        value: its value.
        least: smallest allowed value.
        most: largest allowed value.
        reason: where the range comes from, if it is not obvious.

    Raises:
        ConfigError: it is not.
    """
    if value >= least and (most is None or value <= most):
        return
    allowed = f"at least {least:,}" if most is None else f"{least:,}" if least == most else f"{least:,} to {most:,}"
    raise ConfigError(f"{option} is {value:,}, expected {allowed}" + (f" ({reason})" if reason else ""))


def check_positive(option: str, value: float, most: float = math.inf) -> None:
    """Check that `0 < value <= most` and that it is finite.

    Raises:
        ConfigError: it is not.
    """
    if not (0 < value <= most and math.isfinite(value)):
        limit = "" if math.isinf(most) else f", at most {most:,.0f}"
        raise ConfigError(f"{option} is {value:g}, expected a number above 0{limit}")


def add_size_options(parser: argparse.ArgumentParser, batch: str, seq: str) -> None:
    """Add `--batch` and `--seq`; `batch` and `seq` describe their defaults."""
    parser.add_argument("--batch", type=int, metavar="B", help=f"sequences (default: {batch})")
    parser.add_argument("--seq", type=int, metavar="T", help=f"tokens of each (default: {seq})")


def add_parallel_options(parser: argparse.ArgumentParser) -> None:
    """Add `--world-size` and `--parallel`."""
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="processes that train (default: 1)")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), help="what they share (default: run.parallel)")


def share_of_batch(arguments: argparse.Namespace, batch: int) -> int:
    """Return the sequences of each process of `--world-size`.

    Raises:
        ConfigError: it is out of range, or does not divide the batch.
    """
    processes = arguments.world_size
    check_range("--world-size", processes, 1, MAX_PROCESSES, "processes")
    if batch % processes:
        raise ConfigError(f"--world-size is {processes:,}, which does not divide the batch of {batch:,} sequences")
    return batch // processes


def check_batch(arguments: argparse.Namespace) -> None:
    """Check `--batch`, before a model is loaded.

    Raises:
        ConfigError: it is out of range.
    """
    if arguments.batch is not None:
        check_range("--batch", arguments.batch, 1, LARGEST_BATCH, "sequences")


def read_size(arguments: argparse.Namespace, batch: int, length: int, block_size: int) -> tuple[int, int]:
    """Return the requested batch B and length T, or these defaults.

    Raises:
        ConfigError: the length is not 1 to `block_size`.
    """
    batch = batch if arguments.batch is None else arguments.batch
    length = length if arguments.seq is None else arguments.seq
    check_range("--seq", length, 1, block_size, "block_size")
    return batch, length
