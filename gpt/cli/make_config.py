"""`scripts/make_config.py`: write a configuration for one's own text."""

import argparse
import json
import shlex
from pathlib import Path

from gpt.cli.command import report
from gpt.cli.shared_options import check_overrides, command, not_empty, to_path, write_output
from gpt.config.loading import dump_config, parse_config, to_name
from gpt.config.strict_yaml import dump
from gpt.environment import read_settings
from gpt.errors import ConfigError


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "a file, a folder, or a glob pattern, as data.path"
    parser.add_argument("text", type=not_empty, metavar="TEXT", help=text)
    values = "values to write, such as data.newlines=lf"
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help=values)
    memory = "memory of the device that will train, such as 8GB: the largest micro-batches that fit are written"
    parser.add_argument("--memory", metavar="SIZE", help=memory)
    parser.add_argument("--output", type=to_path, metavar="FILE", help="default: the text's name with .yaml, here")


@command(
    "Write a YAML file that trains on your own text: size, regularization and steps follow from its amount.",
    "python scripts/make_config.py my.txt --output my.yaml",
    _add_options,
)
def main(arguments: argparse.Namespace) -> int:
    from gpt.corpora.own_text import fit_recipe, unit_of

    output: Path = arguments.output or Path(f"{to_name(Path(arguments.text).name.split('.')[0])}.yaml")
    if output.exists():
        raise ConfigError(f"{output} exists already; choose another --output, or remove it")
    is_here = output.parent.resolve() == Path.cwd()
    path = arguments.text if is_here else str(Path(arguments.text).absolute())
    check_overrides(["data.source=file", "data.path=", *arguments.overrides])
    given = ["data.source=file", f"data.path={json.dumps(path)}", *arguments.overrides]
    given += [f"run.memory={json.dumps(arguments.memory)}"] * (arguments.memory is not None)
    sections, dataset = fit_recipe(parse_config("", "the recipe", given).data, read_settings(), report)
    length, unit = len(dataset.train) + len(dataset.val), unit_of(dataset)
    config = parse_config(dump(sections), "the recipe", given)
    dataset.check_length(config.model.block_size)
    if config.run.memory is not None:
        from gpt.training.fitting import fit_unsized

        config = fit_unsized(config, dataset.tokenizer.vocab_size, report)
    comment = f"# {arguments.text!r}: {length:,} {unit}, {dataset.tokenizer.vocab_size:,} of them distinct.\n"
    write_output(output, (comment + dump_config(config, only_given=True)).encode())
    train = config.train
    read = (train.max_steps + train.teacher_steps) * train.sequences * config.model.block_size
    report(f"{length:,} {unit}, each read {read / len(dataset.train):,.1f} times; train with:")
    print(f"python scripts/train.py --config {shlex.quote(str(output))}")
    return 0
