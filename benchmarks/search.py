"""`scripts/bench.py train search`: successive halving over changes of a recipe, at equal training arithmetic.

Losses are those of the last tenth of the *training* split, so that the validation split stays unread.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cli_options import add_count, add_measurement, at_least, check_overrides
from benchmarks.measure import Row, describe, finish, make_table
from benchmarks.training_runs import loss_of, time_ours
from gpt.cli.command import report
from gpt.config import Config
from gpt.config.loading import load_config
from gpt.config.strict_yaml import YAMLSyntaxError, parse
from gpt.environment import read_settings
from gpt.errors import ConfigError, GPTError

NOTE = (
    "Loss: nats per token over the last part of the training split, mean over seeds. Share: of the recipe's training\n"
    "FLOPs; a candidate gets as many steps as they pay for."
)
COLUMNS = {
    "loss": lambda row: f"{row['loss']:.4f}",
    "to the recipe": lambda row: f"{row['change']:+.4f}",
    "seeds": lambda row: str(row["seeds"]),
    "share": lambda row: f"{row['share']:g}",
    "steps": lambda row: f"{row['steps']:,}",
    "s": lambda row: f"{row['seconds']:.0f}",
}
RECIPE = "recipe"
"""Name of the candidate without overrides, which is always there and never eliminated."""


def add_parsers(subparsers: Any) -> None:
    """Add the options of the search."""
    summary = "Compare changes of a recipe at equal arithmetic, and keep every result in a file."
    example = "--config configs/shakespeare.yaml --candidates changes.yaml --results search.jsonl"
    parser = add_measurement(subparsers, "train search", summary, example)
    meaning = "YAML file: a name for each candidate, with a list of section.key=value"
    parser.add_argument("--candidates", required=True, type=Path, metavar="FILE", help=meaning)
    meaning = "a line of JSON for each run; runs that it has are not repeated"
    parser.add_argument("--results", required=True, type=Path, metavar="FILE", help=meaning)
    meaning = "arithmetic of each round, as a share of the recipe's (default: 0.33 1)"
    share = at_least(0.001, float)
    parser.add_argument("--shares", type=share, nargs="+", default=[0.33, 1.0], metavar="SHARE", help=meaning)
    add_count(parser, "--keep", 3, "one candidate in this many goes on to the next round", lowest=2)
    add_count(parser, "--seeds", [1], "a run for each")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every round of the search; print a table of each."""
    check_overrides(arguments, "run.seed", "data.source", "data.path", "train.max_steps")
    candidates = {RECIPE: [], **read_candidates(arguments.candidates)}
    recipe = load_config(Path(arguments.config), arguments.overrides).config
    facts, rounds = describe("train search", arguments, recipe.run), []
    with tempfile.TemporaryDirectory(prefix="gpt-search-") as folder:
        search = Search(arguments.config, arguments.overrides, arguments.results, Path(folder))
        names = list(candidates)
        for share in arguments.shares:
            runs = {name: [search.result(candidates[name], seed, share) for seed in arguments.seeds] for name in names}
            rounds.append(rank(runs))
            names = survivors(rounds[-1], arguments.keep)
    tables = [make_table(f"{arguments.config}, round {n}", rows, COLUMNS, NOTE) for n, rows in enumerate(rounds, 1)]
    return finish(arguments, tables, {**facts, "rounds": rounds})


def read_candidates(path: Path) -> dict[str, list[str]]:
    """Return the overrides of each candidate, by its name."""
    try:
        found = parse(path.read_text(encoding="utf-8")).data
    except (OSError, UnicodeDecodeError, YAMLSyntaxError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for name, overrides in found.items():
        if not (isinstance(overrides, list) and all(isinstance(override, str) for override in overrides)):
            raise ConfigError(f"{path}: {name}: expected a list of section.key=value, got {overrides!r}")
    return found


class Search:
    """Trains candidates on a part of the training split, and keeps every result as a line of JSON.

    Args:
        overrides: of the recipe, and so of every candidate.
        folder: a temporary folder for the training text.
    """

    def __init__(self, config: str, overrides: Sequence[str], results: Path, folder: Path) -> None:
        from gpt.corpora import prepare

        self.config, self.overrides, self.results = config, list(overrides), results
        self.recipe = load_config(Path(config), overrides).config
        dataset = prepare(self.recipe.data, read_settings(), report)
        self.vocab_size, self.text = dataset.tokenizer.vocab_size, folder / "train.txt"
        self.tokens = round(len(dataset.train) * (1 - self.recipe.data.val_fraction))
        self.text.write_text(dataset.tokenizer.decode(np.asarray(dataset.train)), encoding="utf-8", newline="")

    def result(self, overrides: Sequence[str], seed: int, share: float) -> Row:
        """Return the result of one run; train only if the file does not have it."""
        from gpt.corpora import prepare

        settings = [*self.overrides, *overrides]
        key = {"config": self.config, "overrides": settings, "seed": seed, "share": share}
        known = next((row for row in self._rows() if row | key == row), None)
        if known is not None:
            return known
        config = load_config(Path(self.config), settings).config
        steps, decay = self.steps(config, share), config.optim.decay_steps
        settings = [*settings, "data.source=file", f"data.path={self.text}"]
        settings += [f"run.seed={seed}", f"train.max_steps={steps}"]
        if decay is not None:
            settings.append(f"optim.decay_steps={max(1, round(decay * steps / config.train.max_steps))}")
        report(f"{' '.join(overrides) or RECIPE}, seed {seed}: {steps:,} steps")
        run = time_ours(self.config, settings)
        dataset = prepare(load_config(Path(self.config), settings).config.data, read_settings(), report)
        loss = loss_of(run.model, dataset, config.model.block_size)
        row = {**key, "steps": steps, "loss": loss, "seconds": run.seconds}
        with self.results.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        report(f"  loss {loss:.4f} after {run.seconds:.0f} s")
        return row

    def steps(self, config: Config, share: float) -> int:
        """Return how many steps of a candidate, with those of its teacher, cost a share of the recipe's FLOPs."""
        from gpt.accounting.flops import run_flops

        def flops(config: Config, steps: int) -> int:
            model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or self.vocab_size})
            train = config.train.model_copy(update={"max_steps": steps})
            return run_flops(config.model_copy(update={"model": model, "train": train}), self.tokens)

        budget, most = share * flops(self.recipe, self.recipe.train.max_steps), 1_000_000
        once = flops(config, 1)  # with one step of the teacher, and its predictions
        per_step = (flops(config, most) - once) / (most - 1)
        return max(1, round((budget - once) / per_step) + 1)

    def _rows(self) -> list[Row]:
        if not self.results.exists():
            return []
        try:
            return [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise GPTError(f"{self.results}: a line is not JSON ({error}); remove it and start again") from None


def rank(runs: Mapping[str, Sequence[Row]]) -> dict[str, Row]:
    """Return a row for each candidate with its mean loss, the best first."""
    means = {name: statistics.fmean(row["loss"] for row in rows) for name, rows in runs.items()}
    return {
        name: {
            **{key: runs[name][0][key] for key in ("share", "steps", "overrides")},
            "loss": means[name],
            "change": means[name] - means[RECIPE],
            "seeds": len(runs[name]),
            "seconds": statistics.fmean(row["seconds"] for row in runs[name]),
        }
        for name in sorted(means, key=lambda name: means[name])
    }


def survivors(rows: Mapping[str, Row], keep: int) -> list[str]:
    """Return the candidates of the next round: the recipe and the best of the others, one in `keep`."""
    others = [name for name in rows if name != RECIPE]
    return [RECIPE, *others[: -(-len(others) // keep)]]
