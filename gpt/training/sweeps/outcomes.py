"""What became of each trial of a sweep: read from its run folder, kept in results.json and results.csv."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from gpt.checkpoint import RunFolder, read_state
from gpt.errors import CheckpointError, GPTError
from gpt.files import MAX_JSON_BYTES, parse_json, read_file, write_atomic
from gpt.progress import Report, silent
from gpt.training.sweeps.trials import Trial

RESULTS, TABLE = "results.json", "results.csv"
MEASURED = ("best_val_loss", "best_step", "val_loss", "step", "seconds")
"""What is taken from the state of a trial's last checkpoint."""
Status = Literal["finished", "stopped", "failed", "waiting"]


@dataclass(frozen=True)
class Outcome:
    """The state of a trial.

    Attributes:
        status: finished; stopped, to be resumed; failed, to be tried again; or waiting for its turn.
        best_val_loss: lowest validation loss, in nats per token.
        best_step: step of it.
        val_loss: last validation loss, in nats per token.
    """

    name: str
    status: Status = "waiting"
    best_val_loss: float | None = None
    best_step: int | None = None
    val_loss: float | None = None
    step: int | None = None
    seconds: float | None = None
    message: str = ""

    @property
    def rank(self) -> tuple[bool, float]:
        """Return what sorts finished trials first, each group by its loss."""
        return self.status != "finished", math.inf if self.best_val_loss is None else self.best_val_loss


def measure(run: RunFolder, outcome: Outcome) -> Outcome:
    """Return the outcome with the counters of the run's last checkpoint, if there is one."""
    folder = run.pointed("last")
    try:
        state = read_state(folder) if folder else {}
    except CheckpointError:
        # it is damaged, which a resume reports
        state = {}
    measured: dict[str, Any] = {name: state.get(name) for name in MEASURED}
    return replace(outcome, **measured)


def load_outcomes(folder: Path, report: Report = silent) -> dict[str, Outcome]:
    """Return the outcomes by name that `save_outcomes` wrote, as far as the runs themselves say the same.

    Args:
        report: takes a line where the file is damaged or missing, or belongs to other runs.
    """
    path = folder / RESULTS
    try:
        rows = parse_json(read_file(path, MAX_JSON_BYTES))["trials"]
        names = {field.name for field in fields(Outcome)}
        found = TypeAdapter(list[Outcome]).validate_python([{name: row[name] for name in names} for row in rows])
    except FileNotFoundError:
        if any(folder.glob("*/last.json")):
            report(f"{path} is missing; every trial is looked at again")
        return {}
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        report(f"{path} is damaged; every trial is looked at again")
        return {}
    true = {outcome.name: outcome for outcome in found if measure(RunFolder(folder / outcome.name), outcome) == outcome}
    for outcome in found:
        if outcome.status == "finished" and outcome.name not in true:
            report(f"{path} and the run {outcome.name} do not agree; that trial is looked at again")
    return {name: outcome for name, outcome in true.items() if outcome.step is not None}


def save_outcomes(folder: Path, trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> None:
    """Write both files, sorted by validation loss.

    Raises:
        GPTError: they cannot be written.
    """
    rows = to_rows(trials, outcomes)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*(rows[0]["values"] if rows else ()), *(field.name for field in fields(Outcome))])
    writer.writeheader()
    for row in rows:
        writer.writerow({**{key: value for key, value in row.items() if key != "values"}, **row["values"]})
    try:
        write_atomic(folder / TABLE, text.getvalue().encode())
        write_atomic(folder / RESULTS, (json.dumps({"trials": rows}, indent=1) + "\n").encode())
    except OSError as error:
        raise GPTError(f"cannot write the results in {folder}: {error.strerror}") from None


def to_rows(trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the outcomes with the values of their trials, sorted by validation loss."""
    values = {trial.name: dict(trial.values) for trial in trials}
    ranked = sorted(outcomes, key=lambda outcome: outcome.rank)
    return [{**asdict(outcome), "values": values[outcome.name]} for outcome in ranked]
