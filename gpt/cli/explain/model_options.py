"""Options for the model or configuration that a view shows, and for sizes."""

import argparse
from typing import TYPE_CHECKING, NamedTuple

from gpt.cli.command import load_torch
from gpt.cli.shared_options import add_checkpoint_options, add_number, check_overrides, to_path
from gpt.cli.tables import add_format_options
from gpt.config import Config, TrainConfig
from gpt.config.loading import dump_config, load_config, parse_config
from gpt.errors import ConfigError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

PLACEHOLDER_VOCABULARY = 65
"""Vocabulary size assumed if the corpus determines it: that of Tiny Shakespeare."""
LARGEST_BATCH = 1_000_000
"""With more, byte counts would overflow 64 bits."""


class NamedConfig(NamedTuple):
    """A configuration without weights, with `model.vocab_size` set, and its file or name, with any assumption."""

    config: Config
    source: str


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `find_config` reads, overrides among them, and the form of output."""
    parser.add_argument("--config", type=to_path, metavar="FILE", help="configuration to use, not a trained model's")
    parser.add_argument("--published", metavar="NAME", help="published model to use, such as gpt2 or llama-2-7b")
    add_checkpoint_options(parser)
    add_format_options(parser)
    parser.add_argument_group("section.key=value", "Values that replace the configuration's, such as model.n_layer=12.")
    parser.set_defaults(overrides=[])  # `main` collects them, since argparse needs positional arguments to be adjacent


def add_size_options(parser: argparse.ArgumentParser, batch: str = "train.batch_size", seq: str = "block_size") -> None:
    """Add `--batch` and `--seq`, whose defaults `batch` and `seq` describe."""
    add_number(parser, "--batch", f"sequences (default: {batch})", most=LARGEST_BATCH, metavar="B")
    parser.add_argument("--seq", type=int, metavar="T", help=f"tokens of each (default: {seq})")


def find_config(arguments: argparse.Namespace) -> NamedConfig:
    """Return the configuration of `--published`, of `--config`, or of a checkpoint, with the overrides.

    Raises:
        ConfigError: more than one is given, or the configuration cannot be used.
        CheckpointError: there is no such checkpoint.
    """
    given = [name for name in ("published", "config", "checkpoint") if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two models; give one")
    overrides = arguments.overrides
    check_overrides(overrides)
    if arguments.config is not None:
        config, source = with_vocabulary(load_config(arguments.config, overrides).config, str(arguments.config))
    else:
        config, source = _published(arguments.published) if arguments.published is not None else _trained(arguments)
        config = parse_config(dump_config(config), source, overrides) if overrides else config
    return NamedConfig(config, f"{source}, with {' '.join(overrides)}" if overrides else source)


def read_size(
    arguments: argparse.Namespace, config: Config, batch: int | None = None, length: int | None = None
) -> tuple[int, int]:
    """Return the batch B and the length T that are asked for, or these defaults, or the recipe's.

    Raises:
        ConfigError: the length is not 1 to `block_size`.
    """
    block_size = config.model.block_size
    length = (length or block_size) if arguments.seq is None else arguments.seq
    check_range("--seq", length, 1, block_size, "block_size")
    return arguments.batch or batch or config.train.batch_size, length


def check_range(option: str, value: int, least: int, most: int, reason: str) -> None:
    """Raise ConfigError if a value is not `least` to `most`; `reason`: where that comes from."""
    if not least <= value <= most:
        allowed = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        raise ConfigError(f"{option} is {value:,}, expected {allowed} ({reason})")


def load_model(arguments: argparse.Namespace) -> "Loaded":
    """Load the trained model of `--checkpoint`.

    Raises:
        CheckpointError: there is none, or it is damaged.
        DeviceError: there is no such device.
    """
    load_torch()
    from gpt.checkpoint import load_trained
    from gpt.device import choose_device

    return load_trained(arguments.checkpoint, arguments.runs, choose_device(arguments.device))


def _published(name: str) -> NamedConfig:
    from gpt.accounting.published import find_published

    return NamedConfig(Config(model=find_published(name), train=TrainConfig(batch_size=1)), f"{name}, as published")


def _trained(arguments: argparse.Namespace) -> NamedConfig:
    from gpt.checkpoint import find_checkpoint, read_checkpoint

    folder = find_checkpoint(arguments.checkpoint, arguments.runs)
    return NamedConfig(read_checkpoint(folder, training=False).config, str(folder))


def with_vocabulary(config: Config, path: str) -> NamedConfig:
    """Fill in the vocabulary size, which the corpus would otherwise determine."""
    if config.model.vocab_size is not None:
        return NamedConfig(config, path)
    size, reason = PLACEHOLDER_VOCABULARY, "assumed: the corpus determines it"
    if config.data.tokenizer == "byte":
        size, reason = 256, "of bytes"
    elif config.data.tokenizer == "bpe" and config.data.tokenizer_file is None:
        size, reason = config.data.bpe_vocab_size, "of byte pairs"
    model = config.model.model_copy(update={"vocab_size": size})
    return NamedConfig(config.model_copy(update={"model": model}), f"{path} (vocabulary of {size}, {reason})")
