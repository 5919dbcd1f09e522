"""`gpt runs`: list the runs of a folder, and how they differ."""

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt.cli.shared_options import add_plugin_option, add_runs_option, command
from gpt.cli.tables import add_json_option, human_count, print_view
from gpt.config.sources import override
from gpt.extras.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.api.runs import RunSummary, SeedGroup

NOTHING = "-"


def _add_options(parser: argparse.ArgumentParser) -> None:
    names = "names of runs, or run folders (default: all runs)"
    parser.add_argument("names", nargs="*", metavar="RUN", help=names)
    difference = "also print the keys in which the runs differ, and mean and deviation over seeds"
    parser.add_argument("--diff", action="store_true", help=difference)
    add_runs_option(parser)
    add_plugin_option(parser)
    add_json_option(parser)


@command(
    "runs", "List the runs of a folder, from the newest to the oldest.", "--diff", _add_options
)
def main(arguments: argparse.Namespace) -> int:
    from gpt.api.runs import differing_keys, group_by_seed, summarize_runs

    summaries = summarize_runs(arguments.runs, arguments.names)
    tables = [_table_of_runs(summaries, str(arguments.runs))]
    summary: dict[str, Any] = {"runs": [_to_json(each) for each in summaries]}
    if arguments.diff:
        keys = differing_keys(summaries)
        groups = group_by_seed(summaries)
        tables.append(_table_of_groups(groups, keys))
        summary["differing_keys"] = keys
        summary["groups"] = [_group_to_json(group, keys) for group in groups]
    title = "1 run" if len(summaries) == 1 else f"{len(summaries)} runs"
    print_view(arguments, title, tables, summary)
    return 0


def _table_of_runs(summaries: Sequence["RunSummary"], folder: str) -> Table:
    header = ("run", "text", "parameters", "steps", "loss", "bits/char", "date", "")
    rows = [_row_of_run(summary) for summary in summaries]
    note = "loss: the lowest on the validation split, in nats per token"
    return Table(f"runs in {folder}", header, rows, "<<>>>><<", note)


def _row_of_run(summary: "RunSummary") -> tuple[str, ...]:
    if summary.status == "unreadable":
        date = f"{summary.date:%Y-%m-%d %H:%M}"
        return (summary.name, "", "", "", "", "", date, summary.problem)
    parameters = NOTHING
    if summary.parameters is not None:
        parameters = human_count(summary.parameters)
    steps = f"{summary.step:,} of {summary.max_steps:,}"
    if summary.status == "finished":
        steps = f"{summary.step:,}"
    elif summary.status == "weights only":
        steps = NOTHING
    return (
        summary.name,
        summary.text or NOTHING,
        parameters,
        steps,
        _number(summary.best_loss),
        _number(summary.bits_per_char),
        f"{summary.date:%Y-%m-%d %H:%M}",
        summary.status,
    )


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.4f}"


def _table_of_groups(groups: Sequence["SeedGroup"], keys: Sequence[str]) -> Table:
    rows = []
    for group in groups:
        difference = _difference(groups[0], group, keys)
        names = ", ".join(group.names)
        rows.append([_number(group.mean), _number(group.deviation), names, difference])
    header = ("mean loss", "deviation", "runs", "overrides of the best")
    note = "deviation: the sample standard deviation of the seeds' lowest losses"
    return Table("finished runs by configuration, seeds together", header, rows, ">><<", note)


def _difference(best: "SeedGroup", group: "SeedGroup", keys: Sequence[str]) -> str:
    """Say what distinguishes a group from the best one."""
    if group is best:
        return "the best"
    overrides = shlex.join(_overrides(best, group, keys))
    if group.data == best.data:
        return overrides
    # The path of an edited text is the same, so that no key tells the two texts apart.
    return f"{overrides} (another text)".strip()


def _overrides(best: "SeedGroup", group: "SeedGroup", keys: Sequence[str]) -> list[str]:
    """Return what makes the configuration of a group out of the best one, as a command takes it."""
    before = best.config.leaves()
    after = group.config.leaves()
    return [override(key, after[key]) for key in keys if after[key] != before[key]]


def _to_json(summary: "RunSummary") -> dict[str, Any]:
    return {
        "name": summary.name,
        "text": summary.text,
        "parameters": summary.parameters,
        "step": summary.step,
        "max_steps": summary.max_steps,
        "best_loss": summary.best_loss,
        "bits_per_char": summary.bits_per_char,
        "date": summary.date.isoformat(timespec="seconds"),
        "status": summary.status,
        "problem": summary.problem,
    }


def _group_to_json(group: "SeedGroup", keys: Sequence[str]) -> dict[str, Any]:
    values = group.config.leaves()
    return {
        "runs": list(group.names),
        "values": {key: values[key] for key in keys},
        "mean": group.mean,
        "deviation": group.deviation,
    }
