"""`scripts/bench.py train race`: a recipe against what others train in, whole processes in turns."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.options import add_measurement, add_peer_options, check_common, check_counts, check_peers
from benchmarks.output import describe, finish
from benchmarks.race_report import Finish, summary_of, table_of
from benchmarks.readme import BLOCK_SIZE, NANOGPT_FILES, same_budget
from benchmarks.spread import in_turns
from gpt.cli.common import report
from gpt.config import Config, load_config
from gpt.errors import ConfigError
from gpt.settings import read_settings

if TYPE_CHECKING:
    from benchmarks.contenders import Contender
    from gpt.data import Dataset


def add_parser(subparsers: Any) -> None:
    """The options of this measurement."""
    parser = add_measurement(
        subparsers,
        "race",
        "Time a recipe against nanoGPT's recipe for a CPU, and Hugging Face's Trainer with the same budget.",
        "--config configs/shakespeare.yaml --nanogpt ../nanoGPT --hf",
    )
    add_peer_options(parser)
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="processes of each (default: 1)")
    parser.add_argument(
        "--peer-steps",
        type=int,
        default=2000,
        metavar="N",
        help="training steps of the peers (default: 2000, which is what nanoGPT's README says)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Everybody trains, one after the other; then the same judge reads what each left."""
    check_common(arguments)
    check_counts(arguments, "rounds", "peer_steps")
    if arguments.nanogpt is None and not arguments.hf:
        raise ConfigError("nobody to race against; give --nanogpt PATH, --hf or both")
    check_peers(arguments.hf, arguments.nanogpt, NANOGPT_FILES)
    loaded = load_config(Path(arguments.config), arguments.overrides)

    import torch

    from gpt.data import prepare
    from gpt.device import choose_device

    dataset = prepare(loaded.config.data, read_settings(), report)
    dataset.check_length(max(loaded.config.model.block_size, BLOCK_SIZE))
    threads = loaded.config.run.threads or torch.get_num_threads()
    facts = describe("train race", arguments, threads, str(choose_device(loaded.config.run.device)))
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        contenders = _contenders(arguments, loaded.config, dataset, Path(folder) / "nanogpt")
        finishes = _race(contenders, dataset, arguments.rounds)
    settings = {"rounds": arguments.rounds, "peer_steps": arguments.peer_steps}
    return finish(arguments, [table_of(arguments.config, finishes)], {**facts, **settings, **summary_of(finishes)})


def _contenders(arguments: argparse.Namespace, config: Config, dataset: "Dataset", place: Path) -> "list[Contender]":
    """Ours first."""
    from benchmarks import contenders

    threads = config.run.threads
    entered = [contenders.ours(arguments.config, arguments.overrides, config.model.block_size)]
    if arguments.nanogpt is not None:
        entered.append(contenders.nanogpt(arguments.nanogpt, dataset, arguments.peer_steps, threads, place))
    if arguments.hf:
        budget = same_budget(config.data, arguments.peer_steps, threads)
        entered.append(contenders.hugging_face(budget))
    return entered


def _race(contenders: "list[Contender]", dataset: "Dataset", rounds: int) -> dict[str, list[Finish]]:
    """What each got, round by round."""
    from benchmarks.contenders import run_once

    common_size = min(contender.block_size for contender in contenders)
    by_name = {contender.name: contender for contender in contenders}
    finishes: dict[str, list[Finish]] = {name: [] for name in by_name}
    for order in in_turns(list(by_name), rounds):
        for name in order:
            last = run_once(by_name[name], dataset, common_size)
            finishes[name].append(last)
            report(f"{name}: {last.seconds:.1f} s, loss {last.loss:.4f}")
    return finishes
