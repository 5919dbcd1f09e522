"""Options that several measurements share, checked before anything is measured."""

import argparse
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpt.cli.shared_options import add_plugin_option, number
from gpt.system.errors import ConfigError


def add_measurement(
    subparsers: Any, name: str, summary: str, example: str
) -> argparse.ArgumentParser:
    """Add a subcommand with `--json` and `--plugin`; those of `train` also get `--config` and
    overrides.

    Args:
        name: its name in full, such as "train step".
    """
    parser: argparse.ArgumentParser
    parser = subparsers.add_parser(
        name.split()[-1], help=summary, description=summary, example=example
    )
    parser.add_argument(
        "--json", type=json_file, metavar="FILE", help="also write the line of JSON to this file"
    )
    add_plugin_option(parser)
    if name.startswith("train"):
        parser.add_argument(
            "--config", required=True, metavar="FILE", help="YAML file of the run to measure"
        )
        parser.add_argument(
            "overrides",
            nargs="*",
            metavar="section.key=value",
            help="values that replace the file's",
        )
    return parser


def add_count(
    parser: argparse.ArgumentParser,
    name: str,
    default: int | list[int],
    meaning: str,
    lowest: int = 1,
) -> None:
    """Add an option that is a number, or several if the default is a list, none of them below
    `lowest`.
    """
    if isinstance(default, int):
        nargs = None
        shown = str(default)
    else:
        nargs = "+"
        shown = " ".join(map(str, default))
    parser.add_argument(
        name,
        type=at_least(lowest),
        nargs=nargs,
        default=default,
        metavar="N",
        help=f"{meaning} (default: {shown})",
    )


def add_variants(parser: argparse.ArgumentParser, known: Collection[str], default: str) -> None:
    """Add `--variants`: names out of `known`, separated by commas."""

    def names_of(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}, only {', '.join(known)}")
        return names

    meaning = f"of {', '.join(known)}; ratios are to the first (default: {default})"
    parser.add_argument(
        "--variants", type=names_of, default=default, metavar="A,B,...", help=meaning
    )


def add_nanogpt(
    parser: argparse.ArgumentParser, files: Collection[str] = ("model.py",), required: bool = False
) -> None:
    """Add `--nanogpt`, a checkout that must contain `files`."""
    parser.add_argument(
        "--nanogpt",
        type=lambda path: checkout(path, files),
        metavar="PATH",
        required=required,
        help="nanoGPT, from this checkout",
    )


def checkout(path: str | Path, files: Collection[str]) -> Path:
    """Return the absolute path of a checkout, or refuse the option if it lacks one of the files."""
    for name in files:
        if not (Path(path) / name).is_file():
            raise argparse.ArgumentTypeError(
                f"{path} is not a checkout of nanoGPT: it has no {name}"
            )
    return Path(path).absolute()


def at_least(lowest: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return the argparse type of a number that is not below `lowest`."""
    return number(lowest, kind=kind)


def json_file(path: str) -> Path:
    """Return the path of a file to write, or refuse the option if its folder does not exist."""
    if not Path(path).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: there is no such folder")
    return Path(path)


def check_overrides(arguments: argparse.Namespace, *own_keys: str) -> None:
    """Raise ConfigError if an override sets a key that the measurement sets itself."""
    for override in arguments.overrides:
        key = override.partition("=")[0].strip()
        if key in ("run.dir", "run.name", *own_keys):
            raise ConfigError(f"{key} has no effect here; the measurement sets it")


def check_installed(option: str, *packages: str) -> None:
    """Raise ConfigError if packages that an option needs are not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        needed = f"{option} needs {' and '.join(missing)}"
        raise ConfigError(f"{needed}; pip install {' '.join(missing)}")
