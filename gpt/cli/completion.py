"""`gpt completion`: commands, options and names, completed by a shell.

The shell calls the command that is being typed, with variables that argcomplete reads.
"""

import argparse
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from gpt.cli.shared_options import command
from gpt.config import Config
from gpt.config.loading import choices_of
from gpt.config.recipes import recipe_names
from gpt.config.suggestions import section_class

START_FILES = {
    "bash": ('eval "$(gpt completion bash)"', "~/.bashrc"),
    "zsh": ('eval "$(gpt completion zsh)"', "~/.zshrc, after compinit"),
    "fish": ("gpt completion fish | source", "~/.config/fish/config.fish"),
}
"""The line that loads the completion of each shell, and the file to put it into."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=START_FILES, metavar="SHELL", help=", ".join(START_FILES))


@command("completion", "Print what a shell needs in order to complete the command gpt.", "bash", _add_options)
def main(arguments: argparse.Namespace) -> int:
    line, file = START_FILES[arguments.shell]
    print(f"# put this line into {file}:  {line}")
    print(shellcode(["gpt"], shell=arguments.shell))
    return 0


def enter_command(names: Collection[str]) -> str:
    """Return the command of the line that a shell completes, whose own parser then answers; "" if it has none yet."""
    _, _, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    start = int(os.environ["_ARGCOMPLETE"])  # the number of words that are the program
    if len(words) <= start or words[start] not in names:
        return ""
    os.environ["_ARGCOMPLETE"] = str(start + 1)
    return words[start]


def answer(parser: argparse.ArgumentParser) -> None:
    """Print how the line that a shell completes can go on, and exit."""
    _add_completers(parser)
    argcomplete.autocomplete(parser)


def _add_completers(parser: argparse.ArgumentParser) -> None:
    if parser.get_default("overrides") == []:  # a view, which collects them itself
        parser.add_argument("overrides", nargs="*")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _add_completers(subparser)
        elif action.dest in _COMPLETERS:
            action.completer = _COMPLETERS[action.dest]  # type: ignore[attr-defined]


def _configs(prefix: str, **context: Any) -> list[str]:
    return [*recipe_names(), *FilesCompleter(("yaml", "yml"))(prefix)]


def _runs(prefix: str, parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """Return the runs and checkpoints in the folder of runs, and folders."""
    folder = Path(getattr(parsed_args, "runs", None) or "runs")
    found = {str(file.parent) for name in ("last.json", "manifest.json") for file in folder.glob(f"*/{name}")}
    return sorted(found | set(DirectoriesCompleter()(prefix)))


def _overrides(prefix: str, parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """Return `section.key=` for every key, or the values of one that is written; and files without `--config`."""
    key, equals, _ = prefix.partition("=")
    if equals:
        return [f"{key}={value}" for value in choices_of(tuple(key.split(".")))]
    keys = [f"{section}.{name}=" for section in Config.model_fields for name in section_class(section).model_fields]
    return keys if getattr(parsed_args, "config", None) else [*keys, *FilesCompleter()(prefix)]


_COMPLETERS = {"config": _configs, "checkpoint": _runs, "overrides": _overrides}
"""By the option that they complete."""
