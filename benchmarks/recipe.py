"""`scripts/bench.py train recipe`: seconds and loss of whole training processes, from cold caches."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.options import OWN_KEYS, add_measurement, check_common
from benchmarks.output import describe, finish
from benchmarks.processes import read_process, script_command, time_process
from benchmarks.spread import spread_of
from gpt.cli.common import report
from gpt.cli.tables import Table
from gpt.config import load_config
from gpt.errors import ConfigError
from gpt.settings import read_settings

NAME = "bench"
"""Of the run."""

NOTE = (
    "Seconds: scripts/train.py from its start to its end, compiled code not cached before, token files cached.\n"
    "Loss: last checkpoint, nats per token over the whole validation split (scripts/evaluate.py), not timed."
)


@dataclass(frozen=True)
class SeedRun:
    """One finished process.

    Attributes:
        seed: `run.seed`.
        seconds: wall time of the process.
        loss: over the whole validation split, nats per token.
    """

    seed: int
    seconds: float
    loss: float


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_measurement(
        subparsers,
        "recipe",
        "Time whole training processes and judge what they trained.",
        "--config configs/shakespeare.yaml --seeds 1 2 3",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="a process each (default: 1 2 3)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Time every seed, one after the other."""
    check_common(arguments, (*OWN_KEYS, "run.seed"))
    if min(arguments.seeds) < 0:
        raise ConfigError(f"--seeds has {min(arguments.seeds)}, expected at least 0")
    loaded = load_config(Path(arguments.config), arguments.overrides)

    import torch

    from gpt.data import prepare
    from gpt.device import choose_device

    threads = loaded.config.run.threads or torch.get_num_threads()
    facts = describe("train recipe", arguments, threads, str(choose_device(loaded.config.run.device)))
    prepare(loaded.config.data, read_settings(), report)
    runs = []
    for seed in arguments.seeds:
        runs.append(_run_seed(arguments, seed))
        report(f"seed {seed}: {runs[-1].seconds:.1f} s, loss {runs[-1].loss:.4f}")
    return finish(arguments, [table_of(arguments.config, runs)], {**facts, **summary_of(runs)})


def train_command(config: str, overrides: Sequence[str], folder: Path) -> list[str]:
    """`scripts/train.py` with its run folder at `folder`/bench; later overrides win."""
    return [*script_command("train"), "--config", config, *overrides, f"run.dir={folder}", f"run.name={NAME}"]


def table_of(title: str, runs: Sequence[SeedRun]) -> Table:
    """Each seed, the mean, and the standard deviation where there are several."""
    seconds, loss = spread_of([one.seconds for one in runs]), spread_of([one.loss for one in runs])
    rows = [(str(one.seed), f"{one.seconds:.1f}", f"{one.loss:.4f}") for one in runs]
    rows.append(("mean", f"{seconds.mean:.1f}", f"{loss.mean:.4f}"))
    if seconds.deviation is not None and loss.deviation is not None:
        rows.append(("deviation", f"{seconds.deviation:.1f}", f"{loss.deviation:.4f}"))
    return Table(title, ("seed", "seconds", "loss"), rows, "<>>", NOTE)


def summary_of(runs: Sequence[SeedRun]) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "compile_cache": "cold",
        "token_files": "cached",
        "seconds": asdict(spread_of([one.seconds for one in runs])),
        "loss": asdict(spread_of([one.loss for one in runs])),
        "runs": [asdict(one) for one in runs],
    }


def _run_seed(arguments: argparse.Namespace, seed: int) -> SeedRun:
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as name:
        folder = Path(name)
        command = train_command(arguments.config, [*arguments.overrides, f"run.seed={seed}"], folder / "runs")
        seconds = time_process(command, caches=folder / "caches")
        last = folder / "runs" / NAME / "last"
        printed = read_process([*script_command("evaluate"), "--checkpoint", str(last), "--protocol", "full"])
    return SeedRun(seed, seconds, json.loads(printed.splitlines()[-1])["loss"])
