"""Where the model comes from that a view looks at."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli.common import add_checkpoint_options, build_parser
from gpt.config import Config, TrainConfig, load_config
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

PLACEHOLDER_VOCABULARY = 65
"""Ids of a configuration that leaves them to its corpus: those of Tiny Shakespeare."""

LARGEST_BATCH = 1_000_000
"""More would count bytes past what a 64-bit number holds."""


@dataclass(frozen=True)
class Shape:
    """A configuration without weights.

    Attributes:
        config: with `model.vocab_size` set.
        note: where it comes from, and what had to be assumed.
    """

    config: Config
    note: str


def add_view(subparsers: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """The parser of one view, which ends its help with an example."""
    model = build_parser(summary, f"python scripts/explain.py {name} {example}")
    return subparsers.add_parser(
        name,
        help=summary,
        description=model.description,
        epilog=model.epilog,
        formatter_class=model.formatter_class,
        allow_abbrev=False,
    )


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """`--config` beside the options of a checkpoint."""
    parser.add_argument("--config", metavar="FILE", help="look at this configuration instead of a trained model")
    add_checkpoint_options(parser)


def read_config(path: str) -> Shape:
    """A configuration file, with a vocabulary size.

    Raises:
        ConfigError: it cannot be used.
    """
    config = load_config(Path(path), []).config
    if config.model.vocab_size is not None:
        return Shape(config, path)
    assumed = 256 if config.data.tokenizer == "byte" else PLACEHOLDER_VOCABULARY
    model = config.model.model_copy(update={"vocab_size": assumed})
    reason = "of bytes" if config.data.tokenizer == "byte" else "assumed: the corpus decides it"
    return Shape(config.model_copy(update={"model": model}), f"{path} (vocabulary of {assumed}, {reason})")


def read_shape(arguments: argparse.Namespace) -> Shape:
    """The configuration of `--config`, or of a checkpoint.

    Raises:
        ConfigError: both are given, or the file cannot be used.
        CheckpointError: there is no such checkpoint.
    """
    if arguments.config is not None:
        if arguments.checkpoint is not None:
            raise ConfigError("--config and --checkpoint are two models; give one")
        return read_config(arguments.config)
    from gpt.checkpoint import find_checkpoint, read_checkpoint

    folder = find_checkpoint(Path(arguments.checkpoint) if arguments.checkpoint else None, Path(arguments.runs))
    return Shape(read_checkpoint(folder).config, str(folder))


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """`--published` beside `--config` and the options of a checkpoint."""
    add_shape_options(parser)
    parser.add_argument("--published", metavar="NAME", help="look at a published model, such as gpt2 or llama-2-7b")


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """`--batch` and `--seq`."""
    parser.add_argument("--batch", type=int, metavar="B", help="sequences (default: train.batch_size)")
    parser.add_argument("--seq", type=int, metavar="T", help="tokens of each (default: block_size)")


def read_model(arguments: argparse.Namespace) -> Shape:
    """The configuration of `--published`, of `--config`, or of a checkpoint.

    Raises:
        ConfigError: more than one is given, or it cannot be used.
        CheckpointError: there is no such checkpoint.
    """
    if arguments.published is None:
        return read_shape(arguments)
    for name in ("config", "checkpoint"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--published and --{name} are two models; give one")
    from gpt.inspection.published import find_published

    config = Config(model=find_published(arguments.published), train=TrainConfig(batch_size=1))
    return Shape(config, f"{arguments.published}, as published")


def check_size(option: str, value: int, most: int, reason: str) -> None:
    """Refuse a size outside 1 to `most`.

    Raises:
        ConfigError: it is; the message ends with the reason.
    """
    if not 1 <= value <= most:
        raise ConfigError(f"{option} is {value:,}, expected 1 to {most:,} ({reason})")


def read_size(arguments: argparse.Namespace, config: Config) -> tuple[int, int]:
    """Batch B and length T: `--batch` and `--seq`, or what the configuration trains with.

    Raises:
        ConfigError: no batch has that size, or the model takes no such length.
    """
    batch = config.train.batch_size if arguments.batch is None else arguments.batch
    length = config.model.block_size if arguments.seq is None else arguments.seq
    check_size("--batch", batch, LARGEST_BATCH, "sequences")
    check_size("--seq", length, config.model.block_size, "block_size")
    return batch, length


def load_model(arguments: argparse.Namespace) -> "Loaded":
    """The trained model of `--checkpoint`.

    Raises:
        CheckpointError: there is none, or it is damaged.
        DeviceError: there is no such device.
    """
    from gpt.checkpoint import load_trained
    from gpt.device import choose_device

    path = Path(arguments.checkpoint) if arguments.checkpoint else None
    return load_trained(path, Path(arguments.runs), choose_device(arguments.device))
