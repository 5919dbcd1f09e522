"""Where the model comes from that a view looks at."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.common import add_checkpoint_options, load_torch
from gpt.config import Config, TrainConfig, load_config
from gpt.config.sections import DEVICE_PATTERN
from gpt.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from gpt.checkpoint import Loaded

PLACEHOLDER_VOCABULARY = 65
"""Ids of a configuration that leaves them to its corpus: those of Tiny Shakespeare."""


@dataclass(frozen=True)
class NamedConfig:
    """A configuration without weights.

    Attributes:
        config: with `model.vocab_size` set.
        source: where it comes from, and what had to be assumed.
    """

    config: Config
    source: str


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """`--published` and `--config` beside the options of a checkpoint: what `find_config` reads."""
    parser.add_argument("--config", metavar="FILE", help="look at this configuration instead of a trained model")
    parser.add_argument("--published", metavar="NAME", help="look at a published model, such as gpt2 or llama-2-7b")
    add_checkpoint_options(parser)


def find_config(arguments: argparse.Namespace) -> NamedConfig:
    """The configuration of `--published`, of `--config`, or of a checkpoint.

    Raises:
        ConfigError: more than one is given, or it cannot be used.
        CheckpointError: there is no such checkpoint.
    """
    given = [name for name in ("published", "config", "checkpoint") if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two models; give one")
    if arguments.published is not None:
        return _published(arguments.published)
    if arguments.config is not None:
        return _configured(arguments.config)
    from gpt.checkpoint import find_checkpoint, read_checkpoint

    folder = find_checkpoint(arguments.checkpoint, arguments.runs)
    return NamedConfig(read_checkpoint(folder).config, str(folder))


def load_model(arguments: argparse.Namespace) -> "Loaded":
    """The trained model of `--checkpoint`.

    Raises:
        CheckpointError: there is none, or it is damaged.
        DeviceError: there is no such device.
    """
    load_torch()
    from gpt.checkpoint import load_trained
    from gpt.device import choose_device

    return load_trained(arguments.checkpoint, arguments.runs, choose_device(arguments.device))


def check_device(arguments: argparse.Namespace) -> None:
    """Refuse a device that cannot be, in the views too that count and compute nothing.

    Raises:
        DeviceError: it has another form than a device's name.
    """
    name = getattr(arguments, "device", "auto")
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise DeviceError(f"device {name}: expected auto, cpu, cuda, cuda:N or mps")


def _published(name: str) -> NamedConfig:
    from gpt.accounting.published import find_published

    config = Config(model=find_published(name), train=TrainConfig(batch_size=1))
    return NamedConfig(config, f"{name}, as published")


def _configured(path: str) -> NamedConfig:
    """A configuration file, with a vocabulary size."""
    config = load_config(Path(path), []).config
    if config.model.vocab_size is not None:
        return NamedConfig(config, path)
    assumed = 256 if config.data.tokenizer == "byte" else PLACEHOLDER_VOCABULARY
    model = config.model.model_copy(update={"vocab_size": assumed})
    reason = "of bytes" if config.data.tokenizer == "byte" else "assumed: the corpus decides it"
    return NamedConfig(config.model_copy(update={"model": model}), f"{path} (vocabulary of {assumed}, {reason})")
