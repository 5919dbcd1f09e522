"""`gpt train`: train a model from a YAML file."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing

from gpt import invocation
from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.shared_options import add_config_options, load_given_plugins, not_empty, read_config
from gpt.config import Config
from gpt.config.loading import LoadedConfig, dump_config
from gpt.distributed import World, joined
from gpt.environment import read_launch, read_settings
from gpt.plugins import load_plugins, plugin_options
from gpt.progress import silent


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a user's mistake, 3 a non-finite loss, 130 and 143 stopped and saved.

    1: another process of a distributed training has ended.
    """
    return run_command(lambda: _run(argv))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Train a GPT. Any key of the configuration can be overridden as section.key=value.",
        "--config shakespeare run.name=slower optim.learning_rate=3e-3",
        prog=invocation.command("train"),
    )
    add_config_options(parser, required=False)
    parser.add_argument(
        "--resume",
        type=not_empty,
        metavar="auto|PATH",
        help="auto: continue this run from its newest readable checkpoint, or start it; PATH: continue from there",
    )
    parser.add_argument(
        "--allow-config-change",
        action="store_true",
        help="resume even though the configuration differs from the checkpoint's",
    )
    parser.add_argument("--offline", action="store_true", help="never use the network (also GPT_OFFLINE=1)")
    parser.add_argument("--print-config", action="store_true", help="print the whole configuration and exit")
    parser.add_argument("--print-schema", action="store_true", help="print the JSON schema of configurations and exit")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.config is None and not arguments.print_schema:
        parser.error("--config FILE is required, for example --config quickstart")
    return arguments


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
    loaded = read_config(arguments)
    if arguments.print_config:
        sys.stdout.write(dump_config(loaded.config))
        return arguments, None
    return arguments, loaded


def _train(loaded: LoadedConfig, arguments: argparse.Namespace, world: World) -> int:
    load_torch()
    from gpt.accounting.flops import run_flops
    from gpt.api.displays import build_displays
    from gpt.training.plan import Request
    from gpt.training.signals import Interrupted
    from gpt.training.stages import open_runs

    settings, tell = read_settings(arguments.offline), report if world.is_main else silent
    with world.together():
        displays = build_displays(loaded.config.train)
    request = Request(loaded, settings, tell, arguments.resume, arguments.allow_config_change, world)
    with closing(open_runs(request, displays=displays)) as runs:
        for trainer in runs:
            folder = trainer.run_folder.path
            try:
                state = trainer.run()
            except Interrupted as stopped:
                again = "the same command and --resume auto"
                if folder.name == loaded.name and world.size == 1:
                    config = folder / "config.yaml"
                    again = invocation.command("train", "--config", config, *plugin_options(), "--resume", "auto")
                tell(f"stopped by {stopped} at step {trainer.state.step}, saved in {folder}; continue with: {again}")
                return stopped.exit_code
    flops = run_flops(trainer.config, len(trainer.dataset.train))
    taught = " with the teacher's" if trainer.config.train.teacher_share else ""
    cost = "" if state.step < trainer.config.train.max_steps else f", {flops / 1e12:,.3g} TFLOP{taught}"
    tell(
        f"done: {state.step} steps in {state.seconds:.1f} s{cost}; best validation loss {state.best_val_loss:.4f} nats "
        f"per token at step {state.best_step}; sample with: "
        + invocation.command("sample", "--checkpoint", folder, *plugin_options())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
