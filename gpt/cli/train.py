"""`gpt train`: train a model from a YAML file."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from gpt.cli.command import CommandParser, load, load_torch, report, run_command
from gpt.cli.config_options import add_config_options, check_overrides, read_config, write_output
from gpt.cli.make_config import default_output, describe_reading, fit_text, is_edited
from gpt.cli.shared_options import load_given_plugins, not_empty
from gpt.config import Config
from gpt.config.loading import dump_config, parse_config
from gpt.config.plugins import load_plugins, plugin_options
from gpt.config.sections import SECTIONS
from gpt.config.sources import LoadedConfig, load_config, recipe_names, to_name
from gpt.system.distributed import World, joined
from gpt.system.environment import read_launch, read_settings
from gpt.system.errors import ConfigError
from gpt.system.invocation import command_line
from gpt.system.progress import silent

AUTO = "auto"  # as in gpt.training.resume, which imports torch


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 3 a non-finite loss, 130 and 143 stopped and saved.

    1: another process of a distributed training has ended.
    """
    return run_command(lambda: _run(argv))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Train a GPT: by a configuration, or on your own TEXT, whose configuration is written first, to TEXT.yaml. "
        "Any key can be overridden as section.key=value.",
        "my.txt\n--config shakespeare run.name=slower optim.learning_rate=3e-3",
        prog=command_line("train"),
    )
    add_config_options(parser, or_text=True)
    start = "auto, or nothing: continue this run from its newest readable checkpoint, or start it; PATH: continue from "
    start += "that run or checkpoint, without --config by the run's own configuration"
    parser.add_argument("--resume", type=not_empty, nargs="?", const=AUTO, metavar="auto|PATH", help=start)
    change = "resume even though the configuration differs from the checkpoint's"
    parser.add_argument("--allow-config-change", action="store_true", help=change)
    parser.add_argument("--offline", action="store_true", help="never use the network (also GPT_OFFLINE=1)")
    parser.add_argument("--print-config", action="store_true", help="print the whole configuration and exit")
    parser.add_argument("--print-schema", action="store_true", help="print the JSON schema of configurations and exit")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.resume is not None and _is_no_checkpoint(arguments.resume):
        arguments.overrides.insert(0, arguments.resume)
        arguments.resume = AUTO
    return arguments


def _is_no_checkpoint(word: str) -> bool:
    """Return whether what follows --resume is a text or an override, so that the option is meant to have no value."""
    if not os.path.isfile(word):  # noqa: PTH113
        return "=" in word and not os.path.exists(word)  # noqa: PTH110
    load_torch()
    from gpt.checkpoint import holds_model

    return not holds_model(Path(word).parent)


def _run(argv: Sequence[str] | None) -> int:
    with joined(read_launch()) as world:
        arguments, loaded = world.rank_zero(lambda: _read(argv))
        if loaded is None:
            return 0
        if arguments.plugin:
            # the other processes have not parsed the options
            with world.together():
                load_plugins(arguments.plugin)
        return _train(loaded, arguments, world)


def _read(argv: Sequence[str] | None) -> tuple[argparse.Namespace, LoadedConfig | None]:
    """Return the options and the configuration; None where it, or the schema, was only to be printed."""
    arguments = _parse(argv)
    if arguments.print_schema:
        print(json.dumps(Config.model_json_schema(), indent=2))
        return arguments, None
    text = _take_text(arguments)
    loaded = read_config(arguments) if text is None else _read_text(text, arguments)
    if arguments.print_config:
        sys.stdout.write(dump_config(loaded.config))
        return arguments, None
    return arguments, loaded


def _take_text(arguments: argparse.Namespace) -> str | None:
    """Remove the text from the overrides and return it; None if a configuration is given."""
    exists = os.path.exists  # unlike Path.exists, for an override longer than a file's name too
    texts = [word for word in arguments.overrides if exists(word) or not ("=" in word or _is_key(word))]
    text = next(iter(texts), None)
    if arguments.config is not None:
        if text is not None and exists(text):
            raise ConfigError(f"--config and the text {text} are given; leave one of them out")
        return None
    if text is None and arguments.resume not in (None, AUTO):
        _take_run(arguments)
        return None
    if text is None:
        raise ConfigError("nothing to train on: give a text, such as my.txt, --config FILE or --resume RUN")
    if len(texts) > 1 and (key := next(filter(_is_key, arguments.overrides), None)):
        raise ConfigError(f"{key} has no value; write it as {key}=VALUE, without blanks")
    if len(texts) > 1:
        raise ConfigError(
            f"{len(texts)} texts are given; name their folder, or put a pattern in quotes, such as '*.txt'"
        )
    if Path(text).suffix in (".yaml", ".yml") or (not exists(text) and text in recipe_names()):
        again = command_line("train", "--config", text)
        raise ConfigError(f"{text} is a configuration, not a text; train by it with: {again}")
    arguments.overrides.remove(text)
    return str(text)


def _take_run(arguments: argparse.Namespace) -> None:
    """Find the checkpoint that --resume means, which is then searched for no more, and its run's configuration."""
    load_torch()
    from gpt.checkpoint import configuration_around, find_checkpoint
    from gpt.training.naming import runs_of

    places = [word for word in arguments.overrides if word.partition("=")[0].strip() == "run.dir"]
    runs = runs_of(parse_config("", "command line", places))
    checkpoint = find_checkpoint(Path(arguments.resume), runs, prefer="last")
    arguments.resume, arguments.config = str(checkpoint), configuration_around(checkpoint)


def _is_key(word: str) -> bool:
    section, _, key = word.partition(".")
    return section in SECTIONS and key in SECTIONS[section].model_fields


def _read_text(text: str, arguments: argparse.Namespace) -> LoadedConfig:
    """Return the configuration for a text; it is written first, with the overrides that say how the text is read."""
    check_overrides(arguments.overrides)
    output = default_output(text)
    of_data = [word for word in arguments.overrides if word.partition(".")[0].strip() == "data"]
    fitted, dataset, content = fit_text(text, output, of_data, read_settings(arguments.offline))
    config = parse_config(content.decode(), str(output), arguments.overrides)
    if output.exists() and is_edited(output):
        _check_same(load_config(output).config.leaves(), fitted.leaves(), output)
    elif not arguments.print_config:
        load_torch()
        from gpt.system.device import choose_device

        choose_device(config.run.device)  # a training that cannot begin here leaves no file
        write_output(output, content)
    model, train = config.model, config.train
    report(
        f"{output}: {model.n_layer} layers of {model.n_embd}, {model.block_size} positions, {train.max_steps:,} steps "
        f"of {train.batch_size} sequences; {describe_reading(config, dataset)}"
    )
    return LoadedConfig(config, to_name(output.stem), output)


def _check_same(found: dict[str, Any], fitted: dict[str, Any], file: Path) -> None:
    for key, value in fitted.items():
        if found[key] != value:
            raise ConfigError(
                f"{file} already exists with other settings than fit this text ({key}: {found[key]}, not {value}); "
                f"remove it, or train by it with: {command_line('train', '--config', str(file))}"
            )


def _train(loaded: LoadedConfig, arguments: argparse.Namespace, world: World) -> int:
    load_torch()
    from gpt.extras.snapshots import Snapshots
    from gpt.model.flops import run_flops
    from gpt.training.signals import Interrupted
    from gpt.training.train import TrainRequest, build_trainer

    # torch's optimizers import it; until then nothing else is imported, but kernels are perhaps compiled and tried
    Thread(target=load, args=("torch._dynamo",)).start()
    settings, tell = read_settings(arguments.offline), report if world.is_main else silent
    callbacks = [Snapshots(tell)] if loaded.config.run.snapshots else []
    request = TrainRequest(loaded, settings, tell, arguments.resume, arguments.allow_config_change, world, callbacks)
    trainer = build_trainer(request)
    folder = trainer.run_folder.path
    try:
        state = trainer.run()
    except Interrupted as stopped:
        again = "the same command and --resume auto"
        if world.size == 1:
            config = folder / "config.yaml"
            again = command_line("train", "--config", str(config), *plugin_options(), "--resume", "auto")
        tell(f"stopped by {stopped} at step {trainer.state.step}, saved in {folder}; continue with: {again}")
        return stopped.exit_code
    is_whole = state.step >= trainer.config.train.max_steps
    cost = f", {run_flops(trainer.config) / 1e12:,.3g} TFLOP" if is_whole else ""
    name, loss, at = "best", state.best_val_loss, state.best_step
    if loss is None:  # that checkpoint was deleted
        name, loss, at = "last", state.val_loss, state.evaluated_step
    tell(
        f"done: {state.step} steps in {state.seconds:.1f} s{cost}; {name} validation loss {loss:.4f} nats "
        f"per token at step {at}; sample with: "
        f"{command_line('sample', '--checkpoint', str(folder), *plugin_options())}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
