"""Run the trials of a sweep in its folder: each is the ordinary train command, which continues or has finished."""

import csv
import io
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from gpt.checkpoint import RunFolder, read_state
from gpt.config import Config, TrainConfig
from gpt.config.loading import dump_config, load_config, with_values
from gpt.environment import child_environment
from gpt.errors import CheckpointError, GPTError
from gpt.files import write_atomic
from gpt.progress import Report
from gpt.signals import WATCHED
from gpt.training.resume import differences
from gpt.training.signals import SignalWatch
from gpt.training.sweeps.trials import Trial
from gpt.training.training_state import TrainingState

COMMAND = (sys.executable, "-P", "-m", "gpt.cli.train")
BASE, RESULTS, TABLE = "base.yaml", "results.json", "results.csv"
"""In the folder of a sweep: the configuration that its trials share, and what became of them."""
CONSOLE = "console.log"
"""In the run folder of a trial: what the command prints."""
STOPPED = {128 + number for number in WATCHED} | {-number for number in WATCHED}
"""Exit codes of a training that a signal has stopped; the second ones before it listened."""
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Outcome:
    """The state of a trial, as the last checkpoint of its run has it.

    Attributes:
        status: finished; stopped, to be resumed; failed, to be tried again; or waiting for its turn.
        best_val_loss: lowest validation loss, in nats per token; `val_loss` is the last one.
    """

    name: str
    status: Literal["finished", "stopped", "failed", "waiting"] = "waiting"
    best_val_loss: float | None = None
    best_step: int | None = None
    val_loss: float | None = None
    step: int | None = None
    seconds: float | None = None
    message: str = ""

    @property
    def rank(self) -> tuple[bool, float]:
        """What sorts finished trials first, each group by its loss."""
        return self.status != "finished", math.inf if self.best_val_loss is None else self.best_val_loss


def read_outcome(run: RunFolder, train: TrainConfig) -> Outcome:
    """Return how far a run is."""
    folder = run.pointed("last")
    try:
        state = TrainingState.from_dict(read_state(folder)) if folder else None
    except CheckpointError:
        # it is damaged, which a resume reports
        state = None
    if state is None:
        return Outcome(run.path.name)
    status: Literal["finished", "stopped"] = "finished" if state.is_over(train) else "stopped"
    return Outcome(
        run.path.name, status, state.best_val_loss, state.best_step, state.val_loss, state.step, state.seconds
    )


def start_trial(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a train command in a session of its own, which no signal of a terminal reaches."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*COMMAND, *arguments]
    with (folder / CONSOLE).open("ab") as out:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=child_environment()
        )


@dataclass
class Sweep:
    """A folder with a run folder for each trial, results.json, results.csv and base.yaml.

    Attributes:
        base: the configuration without the values of the trials.
        options: further arguments of the train command.
    """

    folder: Path
    trials: Sequence[Trial]
    base: Config
    options: Sequence[str]
    report: Report

    def __post_init__(self) -> None:
        self.outcomes = {trial.name: self._read(trial) for trial in self.trials}
        for name, message in _failures(self.folder).items():  # the reasons stay until the trials are tried again
            if name in self.outcomes and self.outcomes[name].status != "finished":
                self.outcomes[name] = replace(self.outcomes[name], status="failed", message=message)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The outcomes with the values of their trials, sorted by validation loss."""
        values = {trial.name: dict(trial.values) for trial in self.trials}
        ranked = sorted(self.outcomes.values(), key=lambda outcome: outcome.rank)
        return [{**asdict(outcome), "values": values[outcome.name]} for outcome in ranked]

    def run(self, devices: Sequence[str] = ()) -> None:
        """Run the trials that are not finished, at most one at a time on each device; a failed one is reported.

        Args:
            devices: values of run.device; without any, one trial at a time runs on that of the configuration.

        Raises:
            Interrupted: a signal arrived; the trials that ran have saved their checkpoints.
            CheckpointError: the folder belongs to another sweep or run, is in use, or cannot be written.
        """
        lock = RunFolder(self.folder)
        lock.lock()
        try:
            self._check_folder()
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomic(self.folder / BASE, dump_config(self.base, only_given=True).encode())
            except OSError as error:
                raise CheckpointError(f"cannot write the sweep {self.folder}: {error.strerror}") from None
            save_results(self.folder, self.rows)
            waiting = [trial for trial in self.trials if self.outcomes[trial.name].status != "finished"]
            self._run_all(waiting, [[f"run.device={device}"] for device in devices] or [[]])
        finally:
            lock.unlock()

    def _check_folder(self) -> None:
        """Raise CheckpointError if the folder is of something else."""
        if RunFolder(self.folder).config() is not None:
            raise CheckpointError(f"{self.folder} is a run, not a sweep; choose another name with run.name=NAME")
        if (self.folder / BASE).is_file():
            changes = differences(load_config(self.folder / BASE).config, self.base)
            if changes:
                raise CheckpointError(
                    f"{self.folder} is a sweep with another configuration ({'; '.join(changes)}); "
                    "choose another name with run.name=NAME, or delete it"
                )
        for trial in self.trials:
            if RunFolder(self.folder / trial.name).is_being_trained():
                raise CheckpointError(f"another process is training {self.folder / trial.name}; wait for it")

    def _run_all(self, waiting: list[Trial], places: list[list[str]]) -> None:
        running: dict[int, tuple[Trial, subprocess.Popen[bytes]]] = {}
        with SignalWatch(self.report) as signals:
            try:
                while waiting or running:
                    for number, place in enumerate(places):
                        if number not in running and waiting:
                            trial = waiting.pop(0)
                            running[number] = trial, self._start(trial, place)
                    for number, (trial, process) in list(running.items()):
                        if process.poll() is not None:
                            del running[number]
                            self._finish(trial, process.poll())
                    signals.check()
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop(running)

    def _start(self, trial: Trial, place: Sequence[str]) -> subprocess.Popen[bytes]:
        self.report(f"{self._number(trial)}: {trial}")
        own = (f"run.dir={self.folder}", f"run.name={trial.name}", *trial.overrides, *place)
        arguments = ("--config", str(self.folder / BASE), "--resume", "auto", *self.options, *own)
        try:
            return start_trial(self.folder / trial.name, arguments)
        except OSError as error:
            raise CheckpointError(f"cannot start {trial.name}: {error.strerror}") from None

    def _stop(self, running: Mapping[int, tuple[Trial, subprocess.Popen[bytes]]]) -> None:
        """Stop what still runs, wait until it has saved its checkpoint, and record it."""
        try:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait()
        except BaseException:
            # a second signal: a second one to the trials too ends them at once
            for _, process in running.values():
                process.terminate()
            raise
        for trial, process in running.values():
            self._finish(trial, process.poll())

    def _finish(self, trial: Trial, code: int | None) -> None:
        """Record and report a process that has ended."""
        assert code is not None
        outcome = self._read(trial)
        if code == 0 and outcome.status == "finished":
            said = (
                f"validation loss {outcome.best_val_loss:.4f} nats per token at step {outcome.best_step}, "
                f"{outcome.seconds:.1f} s"
            )
        elif code in STOPPED:
            outcome = replace(outcome, status="stopped")
            said = f"stopped at step {outcome.step or 0}"
        else:
            console = self.folder / trial.name / CONSOLE
            why = f"ended by {_signal_name(-code)}" if code < 0 else _last_line(console)
            outcome = replace(outcome, status="failed", message=why)
            said = f"failed ({why}); see {console}"
        self.report(f"{self._number(trial)}: {said}")
        self.outcomes[trial.name] = outcome
        save_results(self.folder, self.rows)

    def _read(self, trial: Trial) -> Outcome:
        config, _ = with_values(self.base, trial.values)
        assert config is not None
        return read_outcome(RunFolder(self.folder / trial.name), config.train)

    def _number(self, trial: Trial) -> str:
        return f"trial {self.trials.index(trial) + 1} of {len(self.trials)}"


def save_results(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `Sweep.rows` into both files of results."""
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


def _failures(folder: Path) -> dict[str, str]:
    """Return why trials of an earlier sweep in a folder have failed, by their names; none if that cannot be read."""
    try:
        rows = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["trials"]
        return {row["name"]: row["message"] for row in rows if row["status"] == "failed"}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _last_line(console: Path) -> str:
    lines = console.read_text(encoding="utf-8", errors="replace").splitlines() if console.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _signal_name(number: int) -> str:
    """Return the name of a signal; those for applications have numbers only."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")
