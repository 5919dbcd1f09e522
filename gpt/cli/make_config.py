"""`gpt new`: write a configuration for your own text."""

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.config_options import check_overrides, write_output
from gpt.cli.shared_options import command, not_empty, to_path
from gpt.config import Config
from gpt.config.loading import dump_config, parse_config, read_yaml
from gpt.config.sources import name_of_text, override
from gpt.config.strict_yaml import dump
from gpt.system.environment import Settings, read_settings
from gpt.system.errors import ConfigError
from gpt.system.invocation import command_line

if TYPE_CHECKING:
    from gpt.data.dataset import Dataset


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "a file, a folder, or a glob pattern, as data.path"
    parser.add_argument("text", type=not_empty, metavar="TEXT", help=text)
    values = "values to write, such as train.max_steps=500"
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="section.key=value", help=values
    )
    parser.add_argument(
        "--output", type=to_path, metavar="FILE", help="default: the text's name with .yaml, here"
    )


@command(
    "new",
    "Write a YAML file that trains on your own text: size, regularization and steps follow from "
    "its amount.",
    "my.txt --output my.yaml",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output or default_output(arguments.text)
    if output.exists():
        raise ConfigError(f"{output} exists already; choose another --output, or remove it")
    fitted = fit_text(arguments.text, output, arguments.overrides, read_settings())
    write_output(output, fitted.content)
    report(f"{describe_reading(fitted.config, fitted.dataset)}; train with:")
    print(command_line("train", "--config", str(output)))
    return 0


def default_output(text: str) -> Path:
    """Return where the configuration for a text is written: here, with the text's name."""
    return Path(f"{name_of_text(text)}.yaml")


@dataclass(frozen=True)
class FittedText:
    """A text, and the configuration that fits it.

    Attributes:
        content: of the YAML file with this configuration.
    """

    config: Config
    dataset: "Dataset"
    content: bytes


def fit_text(text: str, output: Path, overrides: Sequence[str], settings: Settings) -> FittedText:
    """Choose the configuration that fits a text; nothing is written.

    Args:
        output: the YAML file; if it is not in this folder, the text's path in it is absolute.
        overrides: values that the file has too, such as train.max_steps=500.
    """
    from gpt.data.own_text import fit_recipe, for_checkpoint
    from gpt.data.preparation import check_length

    is_here = output.parent.resolve() == Path.cwd()
    path = str(Path(text) if is_here else Path(text).absolute())
    check_overrides(["data.source=file", "data.path=", *overrides])
    given = ["data.source=file", override("data.path", path), *overrides]
    chosen = parse_config("", "the recipe", given)
    sections, dataset = fit_recipe(chosen.data, settings, report)
    if chosen.train.init_from is not None:
        sections = for_checkpoint(sections)
    config = parse_config(dump(sections), "the recipe", given)
    if chosen.train.init_from is None:  # else the window is that of the checkpoint
        check_length(dataset, config.data, settings, config.model.block_size)
    body = dump_config(config, only_given=True).encode()
    comment = _describe_text(text, dataset)
    if all(map(decides_recipe, overrides)):
        comment += f" Written anew for another text, unless edited: {_checksum(body)}"
    return FittedText(config, dataset, f"{comment}\n".encode() + body)


def decides_recipe(override: str) -> bool:
    """Return whether a value, such as data.items=lines, has to be known to choose the recipe."""
    key = override.partition("=")[0].strip()
    return key.startswith("data.") or key == "train.init_from"


def _describe_text(text: str, dataset: "Dataset") -> str:
    """Return the comment in the first line of a configuration."""
    from gpt.data.own_text import unit_of

    length = len(dataset.train) + len(dataset.val)
    distinct = dataset.tokenizer.vocab_size
    return f"# {text!r}: {length:,} {unit_of(dataset)}, {distinct:,} of them distinct."


def _checksum(body: bytes) -> str:
    """Return eight characters for the first line by which an edit of the other lines is noticed.

    `gpt train my.txt` may replace my.yaml when the text has changed, but not what a user wrote into
    it. The file itself has to say so, since nothing else is kept beside it.
    """
    return f"{zlib.crc32(body):08x}"


def is_edited(file: Path) -> bool:
    """Return whether a file is not what `fit_text` made of a text alone."""
    comment, _, body = read_yaml(file).encode().partition(b"\n")
    return not comment.endswith(_checksum(body).encode())


def describe_reading(config: Config, dataset: "Dataset") -> str:
    """Return how often a training reads its text."""
    from gpt.data.own_text import unit_of

    tokens_read = config.train.max_steps * config.train.sequences * config.model.block_size
    # The training split is read; the length that a user knows is that of the whole text.
    times = tokens_read / len(dataset.train)
    length = len(dataset.train) + len(dataset.val)
    return f"{length:,} {unit_of(dataset)}, each read {times:,.1f} times"
