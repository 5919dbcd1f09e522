"""Options that several commands of `gpt explain` share: what they show, and at which sizes."""

import argparse
import math
from typing import TYPE_CHECKING, NamedTuple

from gpt.cli.command import load_torch
from gpt.cli.config_options import check_overrides
from gpt.cli.shared_options import (
    STANDARD_INPUT,
    add_checkpoint_options,
    add_number,
    read_text,
    to_path,
)
from gpt.cli.tables import add_json_option
from gpt.config import Config, TrainConfig
from gpt.config.loading import dump_config, parse_config
from gpt.config.sources import load_config
from gpt.system.errors import ConfigError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.checkpoint import Loaded
    from gpt.extras.inspection.tracing.activation_cache import Edits

PLACEHOLDER_VOCABULARY = 65
"""Vocabulary size assumed where the corpus would determine it: that of Tiny Shakespeare."""
BYTE_VOCABULARY = 256
"""Vocabulary size of the tokenizer of bytes."""
MAX_BATCH = 1_000_000
"""Most sequences of a batch: with more, byte counts would overflow 64 bits."""


class NamedConfig(NamedTuple):
    """A configuration whose `model.vocab_size` is set, and where it comes from."""

    config: Config
    source: str  # a file or a name, with overrides and assumptions, as the views print it


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `find_config` reads, overrides among them, and the form of output."""
    parser.add_argument(
        "--config", type=to_path, metavar="FILE", help="configuration to use, not a trained model's"
    )
    parser.add_argument(
        "--published", metavar="NAME", help="published model to use, such as gpt2 or llama-2-7b"
    )
    add_checkpoint_options(parser, with_device=False)
    add_json_option(parser)
    overrides = "Values that replace the configuration's, such as model.n_layer=12."
    parser.add_argument_group("section.key=value", overrides)
    # Only the help needs the group above. `main` collects the overrides, since argparse wants
    # positional arguments next to each other.
    parser.set_defaults(overrides=[])


def add_size_options(
    parser: argparse.ArgumentParser, batch: str = "train.batch_size", seq: str = "block_size"
) -> None:
    """Add `--batch` and `--seq`; the help says that their defaults are `batch` and `seq`."""
    add_number(parser, "--batch", f"sequences (default: {batch})", most=MAX_BATCH, metavar="B")
    parser.add_argument("--seq", type=int, metavar="T", help=f"tokens of each (default: {seq})")


def find_config(arguments: argparse.Namespace) -> NamedConfig:
    """Return the configuration of `--published`, `--config` or a checkpoint, with the overrides.

    Raises:
        ConfigError: two of them are given, or an override is wrong.
    """
    options = ("published", "config", "checkpoint")
    given = [name for name in options if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two models; give one")
    overrides = arguments.overrides
    check_overrides(overrides)

    if arguments.config is not None:
        loaded = load_config(arguments.config, overrides)  # applies the overrides itself
        config, source = with_vocabulary(loaded.config, str(arguments.config))
    elif arguments.published is not None:
        config, source = _published(arguments.published, overrides)
    else:
        config, source = _trained(arguments, overrides)
    if overrides:
        source = f"{source}, with {' '.join(overrides)}"
    return NamedConfig(config, source)


def _published(name: str, overrides: list[str]) -> NamedConfig:
    """Return the configuration of a published model, with the overrides."""
    from gpt.extras.accounting.published import find_published

    # A paper's batch size belongs to its training, which the views do not show.
    config = Config(model=find_published(name), train=TrainConfig(batch_size=1))
    source = f"{name}, as published"
    return NamedConfig(_overridden(config, source, overrides), source)


def _trained(arguments: argparse.Namespace, overrides: list[str]) -> NamedConfig:
    """Return the configuration of a checkpoint, by default the newest, with the overrides."""
    from gpt.checkpoint import find_checkpoint, read_checkpoint

    folder = find_checkpoint(arguments.checkpoint, arguments.runs)
    config = read_checkpoint(folder, training=False).config
    return NamedConfig(_overridden(config, str(folder), overrides), str(folder))


def _overridden(config: Config, source: str, overrides: list[str]) -> Config:
    if not overrides:
        return config
    return parse_config(dump_config(config), source, overrides)


def read_size(
    arguments: argparse.Namespace,
    config: Config,
    batch: int | None = None,
    length: int | None = None,
) -> tuple[int, int]:
    """Return the batch size B and the length T of `--batch` and `--seq`.

    Args:
        batch: the default of `--batch`; None: the batch size of the configuration.
        length: the default of `--seq`; None: the block size of the configuration.
    """
    block_size = config.model.block_size
    if arguments.seq is not None:
        length = arguments.seq
    elif length is None:
        length = block_size
    check_range("--seq", length, 1, block_size, "block_size")
    batch = arguments.batch or batch or config.train.batch_size
    return batch, length


def check_range(option: str, value: int, least: int, most: int, reason: str) -> None:
    """Raise ConfigError if the value of an option is not from `least` to `most`.

    Args:
        reason: where these bounds come from, for the message.
    """
    if least <= value <= most:
        return
    allowed = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    raise ConfigError(f"{option} is {value:,}, expected {allowed} ({reason})")


def with_vocabulary(config: Config, path: str) -> NamedConfig:
    """Fill in the vocabulary size where the corpus would determine it, and say so in the source."""
    if config.model.vocab_size is not None:
        return NamedConfig(config, path)
    if config.data.tokenizer == "byte":
        size = BYTE_VOCABULARY
        reason = "of bytes"
    elif config.data.tokenizer == "bpe":
        size = config.data.bpe_vocab_size
        reason = "of byte pairs"
    elif config.data.tokenizer == "word":
        size = config.data.word_vocab_size
        reason = "of words"
    else:
        size = PLACEHOLDER_VOCABULARY
        reason = "assumed: the corpus determines it"
    model = config.model.model_copy(update={"vocab_size": size})
    filled = config.model_copy(update={"model": model})
    return NamedConfig(filled, f"{path} (vocabulary of {size}, {reason})")


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a view of a text: checkpoint, `--prompt`, `--edit` and `--json`."""
    add_checkpoint_options(parser)
    prompt = "text to look at; - reads standard input"
    parser.add_argument("--prompt", required=True, metavar="TEXT", help=prompt)
    parser.add_argument(
        "--edit",
        action="append",
        default=[],
        metavar="NAME[:HEAD]=FACTOR",
        help="multiply an activation, or one head of it, by FACTOR (0: ablate it), "
        "such as blocks.0.attn.hook_z:2=0; may be repeated",
    )
    add_json_option(parser)


def open_text(arguments: argparse.Namespace) -> tuple["Loaded", "Tensor", "Edits"]:
    """Return the model of `--checkpoint`, the prompt's ids (T,) int64 on its device, and the edits.

    A model of items reads the prompt after their mark, as in its training.

    Raises:
        InputError: an edit is wrong, or the prompt is empty or longer than the window.
    """
    edits = read_edits(arguments)  # before torch is loaded, which takes seconds
    load_torch()
    import torch

    from gpt.checkpoint import load_trained
    from gpt.generation.text import encode_typed_text
    from gpt.system.device import choose_device

    device = choose_device(arguments.device)
    loaded = load_trained(arguments.checkpoint, arguments.runs, device)
    prompt = arguments.prompt
    if prompt == "-":
        prompt = read_text(STANDARD_INPUT)
    ids = encode_typed_text(loaded.tokenizer, prompt, loaded.config.sample)
    window = loaded.config.model.block_size
    if not 1 <= len(ids) <= window:
        raise InputError(
            f"the prompt has {len(ids)} tokens, expected 1 to {window}, the window of the model"
        )
    return loaded, torch.tensor(ids, device=loaded.model.wte.weight.device), edits


def read_edits(arguments: argparse.Namespace) -> "Edits":
    """Return the edits of `--edit`, by the name of the activation that they change."""
    from gpt.extras.inspection.tracing.edits import Edit, scale, zero

    edits: dict[str, list[Edit]] = {}
    for text in arguments.edit:
        target, _, factor_text = text.rpartition("=")
        name, colon, head_text = target.partition(":")
        head = None  # all heads
        try:
            factor = float(factor_text)
            if colon:
                head = int(head_text)
            if not math.isfinite(factor):
                raise ValueError
        except ValueError:
            raise InputError(f"--edit {text}: expected NAME=FACTOR or NAME:HEAD=FACTOR") from None
        # Zeroing is an edit of its own: a product with 0 would keep values that are not finite.
        edit = zero(head) if factor == 0 else scale(factor, head)
        edits.setdefault(name, []).append(edit)
    return edits
