"""`gpt train`: train a model from a YAML file."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.config_options import add_config_options, check_overrides, write_output
from gpt.cli.make_config import (
    decides_recipe,
    default_output,
    describe_reading,
    fit_text,
    is_edited,
)
from gpt.cli.shared_options import not_empty
from gpt.config import Config
from gpt.config.loading import dump_config, parse_config
from gpt.config.plugins import load_plugins, plugin_options
from gpt.config.sections import SECTIONS
from gpt.config.sources import LoadedConfig, load_config, override, recipe_names, to_name
from gpt.system.distributed import World, joined
from gpt.system.environment import read_launch, read_settings
from gpt.system.errors import ConfigError
from gpt.system.invocation import command_line
from gpt.system.progress import silent

if TYPE_CHECKING:
    from gpt.data.dataset import Dataset
    from gpt.training.signals import Interrupted
    from gpt.training.trainer import Trainer

AUTO = "auto"
"""The value of --resume that means the run of this configuration.

`gpt.training.resume` defines it too, but imports torch, which takes seconds.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train a model; return the exit code.

    0: done. 1: another process of a distributed training has ended. 2: a user's mistake. 3: the
    loss was not finite. 130 and 143: stopped by Ctrl-C or SIGTERM, and saved.
    """
    return run_command(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    """Read the command line in the first process, and do what it says in all of them.

    torchrun starts several processes with the same command line. What reads files or prints is
    done by one: `rank_zero` gives its result, or its error, to the others.
    """
    with joined(read_launch()) as world:
        arguments = world.rank_zero(lambda: _parse(argv))
        with world.together():
            # In each process, since the configuration may name what a plugin adds.
            load_plugins(arguments.plugin)
        if arguments.print_schema:
            world.rank_zero(lambda: print(json.dumps(Config.model_json_schema(), indent=2)))
            return 0
        loaded, resume = world.rank_zero(lambda: _read(arguments))
        if arguments.print_config:
            world.rank_zero(lambda: sys.stdout.write(dump_config(loaded.config)))
            return 0
        return _train(loaded, resume, arguments, world)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "Train a GPT: by a configuration, or on your own TEXT, whose configuration is written "
        "first, to TEXT.yaml. Any key can be overridden as section.key=value.",
        "my.txt\n--config shakespeare run.name=slower optim.learning_rate=3e-3",
        prog=command_line("train"),
    )
    add_config_options(parser, or_text=True)
    parser.add_argument(
        "--resume",
        type=not_empty,
        nargs="?",
        const=AUTO,
        metavar="auto|RUN",
        help="auto, or nothing: continue this run from its newest readable checkpoint, or start "
        "it; RUN: continue from that run, by its name or path, or from that checkpoint, without "
        "--config by the run's own configuration",
    )
    parser.add_argument(
        "--val",
        type=not_empty,
        metavar="TEXT",
        help="a text of your own for validation, as data.val_path=TEXT",
    )
    parser.add_argument(
        "--test",
        type=not_empty,
        metavar="TEXT",
        help="a text of your own for evaluate --split test, as data.test_path=TEXT",
    )
    parser.add_argument(
        "--allow-config-change",
        action="store_true",
        help="resume even though the configuration differs from the checkpoint's",
    )
    parser.add_argument(
        "--offline", action="store_true", help="never use the network (also GPT_OFFLINE=1)"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the whole configuration and exit"
    )
    parser.add_argument(
        "--print-schema",
        action="store_true",
        help="print the JSON schema of configurations and exit",
    )
    return parser.parse_intermixed_args(argv)


def _read(arguments: argparse.Namespace) -> tuple[LoadedConfig, str | None]:
    """Return the configuration, and what to resume from: None, `auto` or a path."""
    words: list[str] = arguments.overrides
    resume: str | None = arguments.resume
    if resume is not None and _is_no_checkpoint(resume):
        # --resume was meant to have no value, and argparse took the word that follows for one.
        words = [resume, *words]
        resume = AUTO
    if arguments.val is not None:
        words = [*words, override("data.val_path", arguments.val)]
    if arguments.test is not None:
        words = [*words, override("data.test_path", arguments.test)]
    texts = [word for word in words if _is_text(word)]
    if arguments.config is not None:
        if texts and os.path.exists(texts[0]):  # noqa: PTH110
            raise ConfigError(f"--config and the text {texts[0]} are given; leave one of them out")
        check_overrides(words)
        return load_config(arguments.config, words), resume
    is_path = resume is not None and resume != AUTO
    if is_path and not texts:
        return _read_run(str(resume), words)
    text = _only_text(texts, words)
    overrides = [word for word in words if word != text]
    return _read_text(text, overrides, arguments), resume


def _is_no_checkpoint(word: str) -> bool:
    """Return whether what follows --resume is a text or an override."""
    if not os.path.isfile(word):  # noqa: PTH113
        return "=" in word and not os.path.exists(word)  # noqa: PTH110
    load_torch()
    from gpt.checkpoint import holds_model

    return not holds_model(Path(word).parent)


def _is_text(word: str) -> bool:
    """Return whether a word is a text to train on, there or not, and not an override."""
    # `Path.exists` would raise for an override that is longer than a file's name.
    if os.path.exists(word):  # noqa: PTH110
        return True
    return "=" not in word and not _is_key(word)


def _is_key(word: str) -> bool:
    """Return whether a word is a key of the configuration, as of an override without a value."""
    section, _, key = word.partition(".")
    return section in SECTIONS and key in SECTIONS[section].model_fields


def _only_text(texts: Sequence[str], words: Sequence[str]) -> str:
    """Return the one text that is given; ConfigError: there is none, or it cannot be one."""
    if not texts:
        raise ConfigError(
            "nothing to train on: give a text, such as my.txt, --config FILE or --resume RUN"
        )
    if len(texts) > 1:
        keys = [word for word in words if _is_key(word)]
        if keys:  # `train.max_steps 500`, where 500 was taken for a text
            raise ConfigError(
                f"{keys[0]} has no value; write it as {keys[0]}=VALUE, without spaces"
            )
        raise ConfigError(
            f"{len(texts)} texts are given; name their folder, or put a pattern in quotes, such as "
            "'*.txt'"
        )
    text = texts[0]
    is_recipe = text in recipe_names() and not os.path.exists(text)  # noqa: PTH110
    if is_recipe or Path(text).suffix in (".yaml", ".yml"):
        again = command_line("train", "--config", text)
        raise ConfigError(f"{text} is a configuration, not a text; train by it with: {again}")
    return text


def _read_run(resume: str, overrides: Sequence[str]) -> tuple[LoadedConfig, str]:
    """Return the configuration of the run that --resume names, and the checkpoint it means."""
    load_torch()
    from gpt.checkpoint import configuration_around, find_checkpoint
    from gpt.training.resume import runs_of

    # The other overrides are perhaps right only with the run's configuration, still to be found.
    places = [word for word in overrides if word.partition("=")[0].strip() == "run.dir"]
    runs = runs_of(parse_config("", "command line", places))
    checkpoint = find_checkpoint(Path(resume), runs, prefer="last")
    check_overrides(overrides)
    return load_config(configuration_around(checkpoint), overrides), str(checkpoint)


def _read_text(text: str, overrides: Sequence[str], arguments: argparse.Namespace) -> LoadedConfig:
    """Return the configuration for a text, with all overrides.

    A YAML file with this configuration is written first. Of the overrides it has those by which the
    recipe is chosen; the others are for this run only.
    """
    check_overrides(overrides)
    output = default_output(text)
    of_recipe = [word for word in overrides if decides_recipe(word)]
    settings = read_settings(arguments.offline)
    fitted = fit_text(text, output, of_recipe, settings)
    config = parse_config(fitted.content.decode(), str(output), overrides)
    if output.exists() and is_edited(output):
        # What a user has written into the file is never replaced.
        _check_same(load_config(output).config.leaves(), fitted.config.leaves(), output)
    elif not arguments.print_config:
        load_torch()
        from gpt.system.device import choose_device

        # Checked before the file is written: a training that cannot begin here leaves none.
        choose_device(config.run.device)
        write_output(output, fitted.content)
    report(f"{output}: {_describe_training(config, fitted.dataset)}")
    return LoadedConfig(config, to_name(output.stem), output)


def _describe_training(config: Config, dataset: "Dataset") -> str:
    model = config.model
    train = config.train
    steps = f"{train.max_steps:,} steps of {train.batch_size} sequences"
    if train.init_from is not None:  # its window, and so the amount of text, is not known yet
        return f"the model of {train.init_from}, {steps}"
    size = f"{model.n_layer} layers of {model.n_embd}, {model.block_size} positions"
    return f"{size}, {steps}; {describe_reading(config, dataset)}"


def _check_same(found: dict[str, Any], fitted: dict[str, Any], file: Path) -> None:
    """Raise ConfigError if a file that somebody has edited differs from what fits the text."""
    for key, value in fitted.items():
        if found[key] != value:
            again = command_line("train", "--config", str(file))
            raise ConfigError(
                f"{file} already exists with different settings than this text's recipe ({key}: "
                f"{found[key]}, not {value}); remove it, or train by it with: {again}"
            )


def _train(
    loaded: LoadedConfig, resume: str | None, arguments: argparse.Namespace, world: World
) -> int:
    load_torch()
    from gpt.extras.snapshots import Snapshots
    from gpt.training.monitor import Console
    from gpt.training.signals import Interrupted
    from gpt.training.train import Host, build_trainer

    host = Host(read_settings(arguments.offline), report if world.is_main else silent, world)
    callbacks = []
    if loaded.config.run.snapshots:
        callbacks.append(Snapshots(host.report))
    progress = None
    if world.is_main:
        progress = Console(loaded.config.train.max_steps, sys.stderr)
    trainer = build_trainer(
        loaded,
        host,
        resume=resume,
        allow_config_change=arguments.allow_config_change,
        callbacks=callbacks,
        progress=progress,
    )
    try:
        trainer.run()
    except Interrupted as stopped:
        trainer.report(_how_to_continue(trainer, stopped))
        return stopped.exit_code
    trainer.report(_how_it_ended(trainer))
    return 0


def _how_to_continue(trainer: "Trainer", stopped: "Interrupted") -> str:
    """Return the last line of a training that was stopped, with the command that continues it."""
    folder = trainer.run_folder.path
    again = "the same command and --resume auto"
    if trainer.world.size == 1:
        config = str(folder / "config.yaml")
        again = command_line("train", "--config", config, *plugin_options(), "--resume", "auto")
    return (
        f"stopped by {stopped} at step {trainer.state.step}, saved in {folder}; "
        f"continue with: {again}"
    )


def _how_it_ended(trainer: "Trainer") -> str:
    """Return the last line of a training: its cost, its loss, and the command that samples."""
    from gpt.model.flops import run_flops

    state = trainer.state
    cost = ""
    if state.step >= trainer.config.train.max_steps:  # a callback may have stopped it earlier
        cost = f", {run_flops(trainer.config) / 1e12:,.3g} TFLOP"
    name = "best"
    loss = state.best_val_loss
    step = state.best_step
    if loss is None:  # the best checkpoint was deleted meanwhile
        name = "last"
        loss = state.val_loss
        step = state.evaluated_step
    folder = str(trainer.run_folder.path)
    again = command_line("sample", "--checkpoint", folder, *plugin_options())
    return (
        f"done: {state.step} steps in {state.seconds:.1f} s{cost}; {name} validation loss "
        f"{loss:.4f} nats per token at step {step}; sample with: {again}"
    )


if __name__ == "__main__":
    sys.exit(main())
