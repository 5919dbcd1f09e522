"""Options shared by several commands: numbers, files, plugins and checkpoints."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from gpt.cli.command import CommandParser, run_command
from gpt.system.environment import DEVICE_PATTERN, no_device
from gpt.system.errors import GPTError
from gpt.system.files import text_for_path
from gpt.system.invocation import command_line

STANDARD_INPUT = Path("-")
LARGEST = 2**63 - 1
Run = Callable[[argparse.Namespace], int]


def command(
    name: str,
    description: str,
    example: str,
    add_options: Callable[[argparse.ArgumentParser], object],
) -> Callable[[Run], "Command"]:
    """Make a command of a function of its options, as a decorator."""
    return partial(Command, name, description, example, add_options)


class Command:
    """A command: it takes the command line, and ends as `run_command` says.

    Args:
        name: of the command, as `gpt NAME` calls it.
        run: what it does, with the options that were parsed.
    """

    def __init__(
        self,
        name: str,
        description: str,
        example: str,
        add_options: Callable[[argparse.ArgumentParser], object],
        run: Run,
    ) -> None:
        self._name = name
        self._description = description
        self._example = example
        self._add_options = add_options
        self._run = run

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        return run_command(partial(self._parse_and_run, argv))

    def _parse_and_run(self, argv: Sequence[str] | None) -> int:
        parser = CommandParser(self._description, self._example, prog=command_line(self._name))
        self._add_options(parser)
        arguments = parser.parse_intermixed_args(argv)
        load_given_plugins(arguments)
        if vars(arguments).get("output") == Path("-"):
            parser.error(
                "argument --output: -, expected a name; nothing is written to standard output"
            )
        return self._run(arguments)


def number(
    least: float, most: float = LARGEST, kind: Callable[[str], float] = int
) -> Callable[[str], Any]:
    """Return an argparse type for a number from `least` to `most`."""
    expected = f"{least:,} to {most:,}" if most < LARGEST else f"at least {least:,}"

    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:  # nan is neither
            raise argparse.ArgumentTypeError(f"{text}, expected {expected}")
        return value

    parse.__name__ = kind.__name__  # argparse names it where the text is not a number
    return parse


def standard_input() -> TextIO:
    if sys.stdin is None:
        raise GPTError("standard input is closed; there is nothing to read")
    return sys.stdin


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, or of standard input for -, without a byte order mark."""
    is_input = path == STANDARD_INPUT
    name = "standard input" if is_input else path
    text_message = None if is_input else text_for_path(path)
    if text_message is not None:
        raise GPTError(f"{text_message}; save it in a file and give that, or give - and pipe it in")
    try:
        data = standard_input().buffer.read() if is_input else path.read_bytes()
        return data.decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise GPTError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise GPTError(f"{name} is not UTF-8 text (byte {error.start})") from None


def not_empty(text: str) -> str:
    """Return the value of an option that must not be empty.

    A shell variable that is not set would make it empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("expected a value, got an empty string")
    os.fsencode(text)  # raises a ValueError, which argparse reports, for half of a surrogate pair
    return text


def to_path(text: str) -> Path:
    return Path(not_empty(text))


def add_number(
    parser: "argparse._ActionsContainer",
    option: str,
    meaning: str,
    default: float | None = None,
    most: float = LARGEST,
    metavar: str = "N",
) -> None:
    """Add an option for a whole number from 1 to `most`.

    Its help ends with the default, if there is one.
    """
    shown = "" if default is None else f" (default: {default})"
    parser.add_argument(
        option, type=number(1, most), default=default, metavar=metavar, help=meaning + shown
    )


def device_name(text: str) -> str:
    if not re.fullmatch(DEVICE_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text}, {no_device(text)}")
    return text


def add_device_option(parser: argparse.ArgumentParser) -> None:
    help_text = "auto, cpu, cuda, cuda:N or mps (default: %(default)s)"
    parser.add_argument("--device", type=device_name, default="auto", help=help_text)


def add_runs_option(parser: argparse.ArgumentParser) -> None:
    help_text = "folder of run folders (default: runs)"
    parser.add_argument("--runs", type=to_path, default="runs", metavar="DIR", help=help_text)


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    """Add `--plugin`; `load_given_plugins` loads what it names."""
    file = "Python file with parts of your own, such as a new activation; may be repeated"
    parser.add_argument(
        "--plugin", type=to_path, action="append", default=[], metavar="FILE", help=file
    )


def load_given_plugins(arguments: argparse.Namespace) -> None:
    """Load the plugins of a command line, before the names that they add are looked up."""
    files = vars(arguments).get("plugin")  # not every command has the option
    if files:
        from gpt.config.plugins import load_plugins

        load_plugins(files)


def add_weights_option(parser: argparse.ArgumentParser) -> None:
    weights = "format of the blocks' weights (default: as saved)"
    parser.add_argument("--weights", choices=("float32", "bf16", "int8", "int4"), help=weights)


def add_checkpoint_options(parser: argparse.ArgumentParser, with_device: bool = True) -> None:
    add_plugin_option(parser)
    run = (
        "name of a run, run folder, checkpoint folder, or best/last inside a run (default: the "
        "newest run)"
    )
    parser.add_argument("--checkpoint", type=to_path, metavar="RUN", help=run)
    add_runs_option(parser)
    if with_device:
        add_device_option(parser)
