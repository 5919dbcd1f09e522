"""Options of the views: the model, configuration or text that they show, and sizes."""

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
"""Vocabulary size assumed if the corpus determines it: that of Tiny Shakespeare."""
LARGEST_BATCH = 1_000_000
"""With more, byte counts would overflow 64 bits."""


class NamedConfig(NamedTuple):
    """A configuration without weights, with `model.vocab_size` set, and its file or name, with any assumption."""

    config: Config
    source: str


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
    parser.add_argument_group(
        "section.key=value", "Values that replace the configuration's, such as model.n_layer=12."
    )
    parser.set_defaults(
        overrides=[]
    )  # `main` collects them, since argparse needs positional arguments to be adjacent


def add_size_options(
    parser: argparse.ArgumentParser, batch: str = "train.batch_size", seq: str = "block_size"
) -> None:
    """Add `--batch` and `--seq`, whose defaults `batch` and `seq` describe."""
    add_number(parser, "--batch", f"sequences (default: {batch})", most=LARGEST_BATCH, metavar="B")
    parser.add_argument("--seq", type=int, metavar="T", help=f"tokens of each (default: {seq})")


def find_config(arguments: argparse.Namespace) -> NamedConfig:
    """Return the configuration of `--published`, of `--config`, or of a checkpoint, with the overrides."""
    given = [
        name
        for name in ("published", "config", "checkpoint")
        if getattr(arguments, name) is not None
    ]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two models; give one")
    overrides = arguments.overrides
    check_overrides(overrides)
    if arguments.config is not None:
        config, source = with_vocabulary(
            load_config(arguments.config, overrides).config, str(arguments.config)
        )
    else:
        config, source = (
            _published(arguments.published)
            if arguments.published is not None
            else _trained(arguments)
        )
        config = parse_config(dump_config(config), source, overrides) if overrides else config
    return NamedConfig(config, f"{source}, with {' '.join(overrides)}" if overrides else source)


def read_size(
    arguments: argparse.Namespace,
    config: Config,
    batch: int | None = None,
    length: int | None = None,
) -> tuple[int, int]:
    """Return the batch B and the length T that are asked for, or these defaults, or the recipe's."""
    block_size = config.model.block_size
    length = (length or block_size) if arguments.seq is None else arguments.seq
    check_range("--seq", length, 1, block_size, "block_size")
    return arguments.batch or batch or config.train.batch_size, length


def check_range(option: str, value: int, least: int, most: int, reason: str) -> None:
    """Raise ConfigError if a value is not `least` to `most`; `reason`: where that comes from."""
    if not least <= value <= most:
        allowed = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        raise ConfigError(f"{option} is {value:,}, expected {allowed} ({reason})")


def _published(name: str) -> NamedConfig:
    from gpt.extras.accounting.published import find_published

    return NamedConfig(
        Config(model=find_published(name), train=TrainConfig(batch_size=1)), f"{name}, as published"
    )


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
    elif config.data.tokenizer == "bpe":
        size, reason = config.data.bpe_vocab_size, "of byte pairs"
    model = config.model.model_copy(update={"vocab_size": size})
    return NamedConfig(
        config.model_copy(update={"model": model}), f"{path} (vocabulary of {size}, {reason})"
    )


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a view of a text: checkpoint, `--prompt`, `--edit`, and the form of output."""
    add_checkpoint_options(parser)
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="text to look at; - reads standard input"
    )
    edit = "multiply an activation, or one head of it, by FACTOR (0: ablate it), such as blocks.0.attn.hook_z:2=0; "
    metavar = "NAME[:HEAD]=FACTOR"
    parser.add_argument(
        "--edit", action="append", default=[], metavar=metavar, help=f"{edit}may be repeated"
    )
    add_json_option(parser)


def open_text(arguments: argparse.Namespace) -> tuple["Loaded", "Tensor", "Edits"]:
    """Return the model of `--checkpoint`, the ids (T,) int64 of the prompt on its device, and the edits."""
    edits = read_edits(arguments)
    load_torch()
    import torch

    from gpt.checkpoint import load_trained
    from gpt.data.tokenizers import convert_newlines
    from gpt.system.device import choose_device

    loaded = load_trained(arguments.checkpoint, arguments.runs, choose_device(arguments.device))
    prompt = read_text(STANDARD_INPUT) if arguments.prompt == "-" else arguments.prompt
    ids = loaded.tokenizer.encode(convert_newlines(prompt)).tolist()
    window = loaded.config.model.block_size
    if not 1 <= len(ids) <= window:
        raise InputError(
            f"the prompt has {len(ids)} tokens, expected 1 to {window}, the window of the model"
        )
    return loaded, torch.tensor(ids, device=loaded.model.wte.weight.device), edits


def read_edits(arguments: argparse.Namespace) -> "Edits":
    """Return the edits given by `--edit`."""
    from gpt.extras.inspection.tracing.edits import Edit, scale, zero

    edits: dict[str, list[Edit]] = {}
    for text in arguments.edit:
        target, _, factor = text.rpartition("=")
        name, colon, head = target.partition(":")
        try:
            number, which = float(factor), int(head) if colon else None
            if not math.isfinite(number):
                raise ValueError
        except ValueError:
            raise InputError(f"--edit {text}: expected NAME=FACTOR or NAME:HEAD=FACTOR") from None
        edits.setdefault(name, []).append(scale(number, which) if number else zero(which))
    return edits
