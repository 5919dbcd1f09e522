"""Options of the commands that read a configuration or write a file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.shared_options import add_plugin_option, to_path
from gpt.config.sources import LoadedConfig, load_config, recipe_names
from gpt.system.errors import ConfigError, GPTError
from gpt.system.files import write_atomic


def add_config_options(parser: argparse.ArgumentParser, or_text: bool = False) -> None:
    """Add `--config` and `overrides`.

    Args:
        or_text: whether a text may be given in place of `--config`, among the overrides.
    """
    add_plugin_option(parser)
    file = f"YAML file, or a recipe: {', '.join(recipe_names())}"
    parser.add_argument("--config", type=to_path, required=not or_text, metavar="FILE", help=file)
    metavar = "section.key=value"
    values = "values that replace the file's"
    if or_text:
        metavar = f"TEXT or {metavar}"
        values = f"a file, a folder, or a glob pattern; {values}"
    parser.add_argument("overrides", nargs="*", metavar=metavar, help=values)


def read_config(arguments: argparse.Namespace) -> LoadedConfig:
    """Return the configuration that the options of `add_config_options` give."""
    check_overrides(arguments.overrides)
    return load_config(arguments.config, arguments.overrides)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise ConfigError if a key is overridden twice."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"command line: {key} is given twice; leave one of them out")


def require_free(output: Path) -> None:
    """Raise GPTError where something is there already."""
    if output.exists():
        raise GPTError(f"{output} exists already; choose another --output, or remove it")


def write_output(path: Path | str, content: bytes) -> None:
    try:
        write_atomic(Path(path), content)
    except OSError as error:
        raise GPTError(f"cannot write {path}: {error.strerror or error}") from None
