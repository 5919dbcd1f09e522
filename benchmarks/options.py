"""Options that several measurements share, with checks that come before anything is measured."""

import argparse
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpt.cli.command import add_command
from gpt.errors import ConfigError

Parse = Callable[[str], Any]


def add_measurement(subparsers: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Add a subcommand with `--json`; those of `train` also get `--config` and overrides."""
    parser = add_command(subparsers, name.split()[-1], summary, f"python scripts/bench.py {name} {example}".rstrip())
    parser.add_argument("--json", type=json_file, metavar="FILE", help="also write the line of JSON to this file")
    if name.startswith("train"):
        parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the run to measure")
        parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values that replace the file's")
    return parser


def add_count(parser: argparse.ArgumentParser, name: str, default: int, meaning: str) -> None:
    """Add an option whose value is at least 1."""
    parser.add_argument(name, type=at_least(1), default=default, metavar="N", help=f"{meaning} (default: {default})")


def add_counts(parser: argparse.ArgumentParser, name: str, default: list[int], meaning: str, lowest: int = 1) -> None:
    """Add an option with several values, none of which is below `lowest`."""
    shown = f"{meaning} (default: {' '.join(map(str, default))})"
    parser.add_argument(name, type=at_least(lowest), nargs="+", default=default, metavar="N", help=shown)


def add_variants(parser: argparse.ArgumentParser, known: Collection[str], default: str) -> None:
    """Add `--variants`: names out of `known`, with commas between them."""

    def names_of(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}, only {', '.join(known)}")
        return names

    meaning = f"of {', '.join(known)}; ratios are to the first (default: {default})"
    parser.add_argument("--variants", type=names_of, default=default, metavar="A,B,...", help=meaning)


def add_peers(parser: argparse.ArgumentParser, hugging_face: str, files: Collection[str] = ("model.py",)) -> None:
    """Add `--hf`, with what it means, and `--nanogpt`, whose checkout must have `files`."""
    parser.add_argument("--hf", action="store_true", help=f"also Hugging Face: {hugging_face}")
    meaning = "also nanoGPT, from this checkout"
    parser.add_argument("--nanogpt", type=lambda path: checkout(path, files), metavar="PATH", help=meaning)


def checkout(path: str | Path, files: Collection[str]) -> Path:
    """Parse the path of a nanoGPT checkout that has some files."""
    for name in files:
        if not (Path(path) / name).is_file():
            raise argparse.ArgumentTypeError(f"{path} is not a checkout of nanoGPT: it has no {name}")
    return Path(path).absolute()


def at_least(lowest: int, number: type[int] | type[float] = int) -> Parse:
    """Return a parser of numbers that are not below `lowest`."""

    def parse(text: str) -> float:
        if not number(text) >= lowest:
            raise argparse.ArgumentTypeError(f"{text}, expected at least {lowest}")
        return number(text)

    parse.__name__ = "number"  # argparse names it where the text is none
    return parse


def json_file(path: str) -> Path:
    """Parse the path of a file to write, whose folder must exist."""
    if not Path(path).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: there is no such folder")
    return Path(path)


def check_overrides(arguments: argparse.Namespace, *own_keys: str) -> None:
    """Raise ConfigError for overrides of keys that the measurement sets itself."""
    for override in arguments.overrides:
        key = override.partition("=")[0].strip()
        if key in ("run.dir", "run.name", *own_keys):
            raise ConfigError(f"{key} has no effect here; the measurement sets it")


def check_hugging_face(wanted: bool) -> None:
    """Raise ConfigError where it is wanted and not installed."""
    if wanted:
        check_packages("--hf", "transformers", "accelerate")


def check_packages(option: str, *needed: str) -> None:
    """Raise ConfigError where packages that an option needs are not installed."""
    if missing := [name for name in needed if find_spec(name) is None]:
        raise ConfigError(f"{option} needs {' and '.join(missing)}; pip install {' '.join(missing)}")
