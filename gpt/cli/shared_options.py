"""Options shared by several commands: files, configurations and checkpoints."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from gpt.config import LoadedConfig, load_config
from gpt.errors import CheckpointError, ConfigError, GPTError

STANDARD_INPUT = Path("-")


def standard_input() -> TextIO:
    """Return standard input.

    Raises:
        GPTError: it is closed.
    """
    if sys.stdin is None:
        raise GPTError("standard input is closed; there is nothing to read")
    return sys.stdin


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, or of standard input for -, without a byte order mark.

    Raises:
        GPTError: it cannot be read.
    """
    is_input = path == STANDARD_INPUT
    name = "standard input" if is_input else path
    try:
        data = standard_input().buffer.read() if is_input else path.read_bytes()
        return data.decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise GPTError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise GPTError(f"{name} is not UTF-8 text (byte {error.start})") from None


def not_empty(text: str) -> str:
    """Return the value of an option that must not be empty, as an unset shell variable would make it.

    Nor may it have half of a surrogate pair, which no file name or address has.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a value, got an empty string")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected text that can be encoded, got {text!r}") from None
    return text


def to_path(text: str) -> Path:
    """Return the path of an option that names a file or folder."""
    return Path(not_empty(text))


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    """Add `--plugin`, which `load_given_plugins` reads."""
    parser.add_argument(
        "--plugin",
        type=to_path,
        action="append",
        default=[],
        metavar="FILE",
        help="Python file with parts of your own, see docs/changing.md; may be repeated",
    )


def load_given_plugins(argv: Sequence[str] | None) -> None:
    """Load the plugins of a command line, before its parser is built: their filters have options of their own.

    Raises:
        ConfigError: see `gpt.plugins.load_plugins`.
    """
    words = sys.argv[1:] if argv is None else argv
    if not any(word.startswith("--plugin") for word in words):
        return
    from gpt.plugins import load_plugins

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_plugin_option(parser)
    with contextlib.suppress(argparse.ArgumentError):  # the command's own parser reports it
        load_plugins(parser.parse_known_args(words)[0].plugin)


def add_config_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add `--config`, `--plugin` and overrides."""
    add_plugin_option(parser)
    parser.add_argument(
        "--config", type=to_path, required=required, metavar="FILE", help="YAML file, such as configs/quickstart.yaml"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values that replace the file's")


def read_config(arguments: argparse.Namespace) -> LoadedConfig:
    """Return the configuration that the options of `add_config_options` give.

    Raises:
        ConfigError: see `load_config`; or a key is overridden twice.
    """
    check_overrides(arguments.overrides)
    try:
        return load_config(arguments.config, arguments.overrides)
    except ConfigError:
        if arguments.config.name == "config.yaml":  # of a run, whose checkpoints tell which plugins it needs
            _require_plugins_of(arguments.config.parent)
        raise


def _require_plugins_of(folder: Path) -> None:
    from gpt.checkpoint import find_checkpoint, read_state
    from gpt.plugins import require_plugins

    with contextlib.suppress(OSError):
        recorded = None
        with contextlib.suppress(CheckpointError):  # then the configuration's own error says more
            recorded = read_state(find_checkpoint(folder, folder.parent, prefer="last")).get("plugins")
        require_plugins(recorded)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise ConfigError if a key is overridden twice."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"command line: {key} is given twice; leave one of them out")


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    """Add `--weights`."""
    parser.add_argument(
        "--weights",
        choices=("float32", "bf16", "int8", "int4"),
        help="format of the blocks' weights (default: as saved)",
    )


def add_checkpoint_options(parser: argparse.ArgumentParser, with_device: bool = True) -> None:
    """Add `--checkpoint`, `--runs`, `--plugin` and `--device`."""
    add_plugin_option(parser)
    parser.add_argument(
        "--checkpoint",
        type=to_path,
        metavar="PATH",
        help="run folder, checkpoint folder, or best/last inside a run; default: the newest run",
    )
    parser.add_argument(
        "--runs", type=to_path, default="runs", metavar="DIR", help="folder of run folders (default: runs)"
    )
    if with_device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
