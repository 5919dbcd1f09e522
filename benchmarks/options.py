"""Options that measurements share."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpt.cli.common import add_command
from gpt.errors import ConfigError

OWN_KEYS = ("run.dir", "run.name")
"""Keys that a measurement sets itself."""


def add_measurement(subparsers: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """A parser with `--config`, `--json` and overrides."""
    parser = add_command(subparsers, name, summary, f"python scripts/bench.py train {name} {example}")
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the run to measure")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values that replace the file's")
    parser.add_argument("--json", metavar="FILE", help="write the last line there too")
    return parser


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """`--hf` and `--nanogpt`."""
    parser.add_argument("--hf", action="store_true", help="also Hugging Face: GPT-2 under transformers.Trainer")
    parser.add_argument("--nanogpt", metavar="PATH", type=Path, help="also nanoGPT, from this checkout")


def check_common(arguments: argparse.Namespace, own_keys: Sequence[str] = OWN_KEYS) -> None:
    """Refuse before anything is measured what cannot come true after it.

    Raises:
        ConfigError: an override would have no effect, or there is no folder for the JSON file.
    """
    for override in arguments.overrides:
        key = override.partition("=")[0].strip()
        if key in own_keys:
            raise ConfigError(f"{key} has no effect here; the measurement sets it")
    check_json(arguments)


def check_json(arguments: argparse.Namespace) -> None:
    """Make sure that there is a folder for the JSON file.

    Raises:
        ConfigError: there is not.
    """
    if arguments.json is not None and not Path(arguments.json).absolute().parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: there is no such folder")


def check_peers(hugging_face: bool, nanogpt: Path | None, needed: Sequence[str] = ("model.py",)) -> None:
    """Make sure that the peers are there.

    Args:
        hugging_face: whether its libraries are wanted.
        nanogpt: the checkout that is wanted, or None.
        needed: files of it.

    Raises:
        ConfigError: one is not.
    """
    missing = [name for name in ("transformers", "accelerate") if hugging_face and find_spec(name) is None]
    if missing:
        raise ConfigError(f"--hf needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    for name in needed:
        if nanogpt is not None and not (nanogpt / name).is_file():
            raise ConfigError(f"--nanogpt {nanogpt} is not a checkout of nanoGPT: it has no {name}")


def check_counts(arguments: argparse.Namespace, *names: str) -> None:
    """Make sure that these options are at least 1.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}, expected at least 1")
