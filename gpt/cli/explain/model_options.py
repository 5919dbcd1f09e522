"""Options for the model or configuration that a view shows."""

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpt.cli.command import load_torch
from gpt.cli.shared_options import add_checkpoint_options, check_overrides, to_path
from gpt.config import Config, TrainConfig, dump_config, load_config
from gpt.config.loading import parse_config
from gpt.config.sections import DEVICE_PATTERN
from gpt.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

PLACEHOLDER_VOCABULARY = 65
"""Vocabulary size assumed if the corpus determines it: that of Tiny Shakespeare."""


@dataclass(frozen=True)
class NamedConfig:
    """A configuration without weights.

    Attributes:
        config: with `model.vocab_size` set.
        source: its file or name, and any assumption.
    """

    config: Config
    source: str


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `find_config` reads: `--config`, `--published`, those of a checkpoint, and overrides."""
    parser.add_argument("--config", type=to_path, metavar="FILE", help="configuration to use, not a trained model's")
    parser.add_argument("--published", metavar="NAME", help="published model to use, such as gpt2 or llama-2-7b")
    add_checkpoint_options(parser)
    parser.add_argument_group("section.key=value", "Values that replace the configuration's, such as model.n_layer=12.")
    parser.set_defaults(overrides=[])  # `main` collects them, since argparse needs positional arguments to be adjacent


def find_config(arguments: argparse.Namespace) -> NamedConfig:
    """Return the configuration of `--published`, of `--config`, or of a checkpoint, with the overrides.

    Args:
        arguments: with the options of `add_model_options`.

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
        named = _with_vocabulary(load_config(arguments.config, overrides).config, str(arguments.config))
    else:
        named = _published(arguments.published) if arguments.published is not None else _trained(arguments)
        if overrides:
            named = NamedConfig(parse_config(dump_config(named.config), named.source, overrides), named.source)
    return NamedConfig(named.config, f"{named.source}, with {' '.join(overrides)}") if overrides else named


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


def check_device(arguments: argparse.Namespace) -> None:
    """Check the form of `--device`, which some views ignore.

    Raises:
        DeviceError: it is not the name of a device.
    """
    name = getattr(arguments, "device", "auto")
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise DeviceError(f"device {name}: expected auto, cpu, cuda, cuda:N or mps")


def _published(name: str) -> NamedConfig:
    from gpt.accounting.published import find_published

    config = Config(model=find_published(name), train=TrainConfig(batch_size=1))
    return NamedConfig(config, f"{name}, as published")


def _trained(arguments: argparse.Namespace) -> NamedConfig:
    from gpt.checkpoint import find_checkpoint, read_checkpoint

    folder = find_checkpoint(arguments.checkpoint, arguments.runs)
    return NamedConfig(read_checkpoint(folder).config, str(folder))


def _with_vocabulary(config: Config, path: str) -> NamedConfig:
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
