"""`scripts/make_config.py`: write a configuration for one's own text."""

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpt.cli.command import CommandParser, report, run_command
from gpt.cli.shared_options import check_overrides, not_empty, to_path
from gpt.config import dump_config, parse_config
from gpt.config.loading import to_name
from gpt.config.strict_yaml import dump
from gpt.environment import read_settings
from gpt.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 130 stopped."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "Write a YAML file that trains on your own text: size, regularization and steps follow from its amount.",
        "python scripts/make_config.py my.txt --output my.yaml",
    )
    parser.add_argument(
        "text", nargs="?", type=not_empty, metavar="TEXT", help="a file, a folder, or a glob pattern, as data.path"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="values to write, such as data.newlines=lf"
    )
    parser.add_argument("--output", type=to_path, metavar="FILE", help="default: the text's name with .yaml, here")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.text is None:
        parser.error("TEXT is required, for example my.txt")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    from gpt.corpora.own_text import fit_recipe, unit_of
    from gpt.files import write_atomic

    output: Path = arguments.output or Path(f"{to_name(Path(arguments.text).name.split('.')[0])}.yaml")
    if output.exists():
        raise ConfigError(f"{output} exists already; choose another --output, or remove it")
    is_here = output.parent.resolve() == Path.cwd()
    path = arguments.text if is_here else str(Path(arguments.text).absolute())
    check_overrides(["data.source=file", "data.path=", *arguments.overrides])
    given = ["data.source=file", f"data.path={json.dumps(path)}", *arguments.overrides]
    sections, dataset = fit_recipe(parse_config("", "the recipe", given).data, read_settings(), report)
    length, unit = len(dataset.train) + len(dataset.val), unit_of(dataset)
    config = parse_config(dump(sections), "the recipe", given)
    dataset.check_length(config.model.block_size)
    comment = f"# {arguments.text!r}: {length:,} {unit}, {dataset.tokenizer.vocab_size:,} of them distinct.\n"
    try:
        write_atomic(output, (comment + dump_config(config, only_given=True)).encode())
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from None
    train = config.train
    read = (train.max_steps + train.teacher_steps) * train.batch_size * config.model.block_size
    report(f"{length:,} {unit}, each read {read / len(dataset.train):,.1f} times; train with:")
    print(f"python scripts/train.py --config {shlex.quote(str(output))}")
    return 0
