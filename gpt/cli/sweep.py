"""`gpt sweep`: train with every combination of some values, or with random ones, and compare the losses."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt import invocation
from gpt.cli.command import CommandParser, load_torch, report, run_command
from gpt.cli.shared_options import add_config_options, load_given_plugins, read_config, to_path
from gpt.cli.tables import add_format_options, print_view
from gpt.config import Config
from gpt.config.loading import with_values
from gpt.environment import expand_home
from gpt.errors import ConfigError
from gpt.inspection.rendering.tables import Table
from gpt.plugins import plugin_options


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a trial failed, 2 a user's mistake, 130 and 143 stopped and saved."""
    return run_command(lambda: _run(_parse(argv)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    load_given_plugins(argv)
    parser = CommandParser(
        "Train with every combination of the values in a grid file, or with random ones; the same command continues.",
        "--config quickstart grid.yaml train.max_steps=100",
        prog=invocation.command("sweep"),
    )
    parser.add_argument(
        "grid", type=to_path, metavar="GRID", help="YAML file: a list of values for each key that varies"
    )
    add_config_options(parser)
    parser.add_argument("--random", type=int, metavar="N", help="draw N random combinations instead of taking all")
    parser.add_argument("--seed", type=int, metavar="S", help="of --random (default: 0)")
    parser.add_argument(
        "--devices",
        type=lambda text: text.split(","),
        default=[],
        metavar="A,B",
        help="run a trial at a time on each of these devices, such as cuda:0,cuda:1 (default: one at a time)",
    )
    parser.add_argument("--print-trials", action="store_true", help="print the trials and exit")
    parser.add_argument("--offline", action="store_true", help="never use the network (also GPT_OFFLINE=1)")
    add_format_options(parser)
    arguments = parser.parse_intermixed_args(argv)
    if arguments.random is not None and arguments.random < 1:
        parser.error(f"--random {arguments.random}: expected at least 1")
    if arguments.seed is not None and arguments.random is None:
        parser.error("--seed is of random trials; give --random N")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    from gpt.training.sweeps.trials import plan_trials

    loaded = read_config(arguments)
    trials = plan_trials(arguments.grid, loaded.config, arguments.random, arguments.seed or 0)
    if arguments.print_trials:
        print("\n".join(map(str, trials)))
        return 0
    _check_devices(arguments.devices, trials[0].values)
    folder = expand_home(loaded.config.run.dir, "run.dir") / f"{loaded.name}-{arguments.grid.stem}"
    load_torch()
    from gpt.training.signals import Interrupted
    from gpt.training.sweeps.sweep import Sweep

    options = [*plugin_options(), *(["--offline"] if arguments.offline else [])]
    sweep = Sweep(folder, trials, loaded.config, options, report)
    try:
        sweep.run(arguments.devices)
    except Interrupted as stopped:
        done = sum(row["status"] == "finished" for row in sweep.rows)
        report(f"stopped by {stopped}: {done} of {len(trials)} trials are finished; the same command continues")
        return stopped.exit_code
    rows = sweep.rows
    print_view(arguments, f"{folder}: {len(rows)} trials", lambda: [_table(folder, rows)], {"trials": rows})
    return 0 if all(row["status"] == "finished" for row in rows) else 1


def _check_devices(devices: Sequence[str], varied: Mapping[str, Any]) -> None:
    if devices and "run.device" in varied:
        raise ConfigError("--devices gives the devices, so run.device cannot vary; leave one of them out")
    for device in devices:
        if with_values(Config(), {"run.device": device})[1]:
            raise ConfigError(f"--devices {device}: expected cpu, cuda, cuda:N or mps")


def _table(folder: Path, rows: Sequence[dict[str, Any]]) -> Table:
    names, best = list(rows[0]["values"]), rows[0]
    cells = [
        (
            f"{row['best_val_loss']:.4f}" if row["status"] == "finished" else row["status"],
            "-" if row["best_step"] is None else str(row["best_step"]),
            "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            *map(str, row["values"].values()),
        )
        for row in rows
    ]
    note = "" if best["status"] != "finished" else f"the best: {folder / best['name']}"
    header = ("validation loss", "at step", "s", *names)
    title = "Best validation loss in nats per token, and the step and the seconds of training"
    return Table(title, header, cells, ">>>" + "<" * len(names), note)


if __name__ == "__main__":
    sys.exit(main())
