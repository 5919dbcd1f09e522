"""`gpt`: every command of the package by its name; none is imported but the one that runs."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple

import gpt
from gpt.cli.command import CommandParser, run_command
from gpt.system.invocation import command_line


class Command(NamedTuple):
    """A command: the file of `gpt.cli` with its `main`, and what it does, in a line."""

    file: str
    summary: str


COMMANDS = {
    "new": Command("make_config", "write a configuration that fits your own text"),
    "train": Command("train", "train a model, or resume a run"),
    "sample": Command("sample", "generate text from a trained model"),
    "chat": Command("chat", "talk with a model that was trained on questions and answers"),
    "evaluate": Command("evaluate", "compute the loss of a trained model on held-out text"),
    "explain": Command(
        "explain", "look inside a model: shapes, attention, predictions, FLOPs, memory"
    ),
    "serve": Command("serve", "serve trained models: a playground, and completions over HTTP"),
    "export": Command("export", "write a trained model in a format that other programs read"),
    "import-model": Command("import_model", "convert a model that another program has trained"),
    "quantize": Command("quantize", "write a copy of a checkpoint with quantized weights"),
    "prepare-data": Command("prepare_data", "download and encode a corpus, without training"),
    "runs": Command("runs", "list the runs of a folder, and how they differ"),
    "plot": Command("plot", "plot the loss curves of runs"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words else ""
    if name not in COMMANDS:
        return run_command(partial(_run_without_command, words))
    command = import_module(f"gpt.cli.{COMMANDS[name].file}")
    code: int = command.main(words[1:])
    return code


def _run_without_command(words: list[str]) -> int:
    """Print the help or the version, or say which command was probably meant."""
    parser = CommandParser(
        "A text file in, a trained character-level GPT out.",
        "train --config quickstart",
        prog=command_line(),
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="print the versions of gpt, torch and Python, and exit",
    )
    parser.add_argument(
        "command", nargs="?", metavar="COMMAND", help="see below; each has its own --help"
    )
    listed = "\n".join(f"  {name:14}{command.summary}" for name, command in COMMANDS.items())
    parser.epilog = f"commands:\n{listed}\n\n{parser.epilog}"
    if words and not words[0].startswith("-"):
        from gpt.config.suggestions import nearest

        parser.error(f"there is no command {words[0]!r}{nearest(words[0], COMMANDS)}")
    if parser.parse_args(words).version:
        print(f"gpt {gpt.__version__}, torch {_torch_version()}, Python {sys.version.split()[0]}")
        _print_unused_kernels()
    else:
        parser.print_help()
    return 0


def _print_unused_kernels() -> None:
    """Say why no kernels are used, if some failed on this machine, perhaps from older sources."""
    from gpt.native.cache import kernels_folder
    from gpt.native.verdicts import any_failed
    from gpt.system.environment import read_settings

    if any_failed(kernels_folder(read_settings().cache_dir)):
        import_module("gpt.native.__main__").main()


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")  # from its metadata, since an import would take seconds
    except PackageNotFoundError:
        return "not installed"
