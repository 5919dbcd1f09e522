"""Run the trials of a sweep in its folder, and continue where an earlier process stopped."""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpt.checkpoint import RunFolder
from gpt.config import Config, dump_config, load_config
from gpt.errors import CheckpointError
from gpt.files import write_atomic
from gpt.progress import Report
from gpt.signals import WATCHED
from gpt.training.resume import differences
from gpt.training.signals import SignalWatch
from gpt.training.sweeps.outcomes import Outcome, load_outcomes, measure, save_outcomes
from gpt.training.sweeps.processes import CONSOLE, TrialProcess
from gpt.training.sweeps.trials import Trial

BASE = "base.yaml"
"""In the folder of a sweep: the configuration that its trials share."""
STOPPED = {128 + number for number in WATCHED} | {-number for number in WATCHED}
"""Exit codes of a training that a signal has stopped; the second ones before it listened."""
POLL_SECONDS = 0.1


class Sweep:
    """A folder with a run folder for each trial, results.json, results.csv and base.yaml.

    Args:
        folder: below which the run folders are.
        trials: with different names.
        base: the configuration without the values of the trials.
        options: further arguments of the train command.
    """

    def __init__(
        self, folder: Path, trials: Sequence[Trial], base: Config, options: Sequence[str], report: Report
    ) -> None:
        self.folder, self.trials, self._report = folder, trials, report
        self._base, self._options = base, options
        found = load_outcomes(folder, report)
        self.outcomes = {trial.name: found.get(trial.name, Outcome(trial.name)) for trial in trials}

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
            self._begin()
            waiting = [trial for trial in self.trials if self.outcomes[trial.name].status != "finished"]
            self._run_all(waiting, [[f"run.device={device}"] for device in devices] or [[]])
        finally:
            lock.unlock()

    def _check_folder(self) -> None:
        """Raise CheckpointError if the folder is of something else."""
        if RunFolder(self.folder).config() is not None:
            raise CheckpointError(f"{self.folder} is a run, not a sweep; choose another name with run.name=NAME")
        if (self.folder / BASE).is_file():
            changes = differences(load_config(self.folder / BASE).config, self._base)
            if changes:
                raise CheckpointError(
                    f"{self.folder} is a sweep with another configuration ({'; '.join(changes)}); "
                    "choose another name with run.name=NAME, or delete it"
                )
        for trial in self.trials:
            if RunFolder(self.folder / trial.name).is_being_trained():
                raise CheckpointError(f"another process is training {self.folder / trial.name}; wait for it")

    def _begin(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / BASE, dump_config(self._base, only_given=True).encode())
        except OSError as error:
            raise CheckpointError(f"cannot write the sweep {self.folder}: {error.strerror}") from None
        self._save()

    def _run_all(self, waiting: list[Trial], places: list[list[str]]) -> None:
        running: dict[int, tuple[Trial, TrialProcess]] = {}
        with SignalWatch(self._report) as signals:
            try:
                while waiting or running:
                    for number, place in enumerate(places):
                        if number not in running and waiting:
                            trial = waiting.pop(0)
                            running[number] = trial, self._start(trial, place)
                    for number, (trial, process) in list(running.items()):
                        if process.exit_code is not None:
                            del running[number]
                            self._finish(trial, process)
                    signals.check()
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop(running)

    def _start(self, trial: Trial, place: Sequence[str]) -> TrialProcess:
        self._report(f"{self._number(trial)}: {trial}")
        own = (f"run.dir={self.folder}", f"run.name={trial.name}", *trial.overrides, *place)
        arguments = ("--config", str(self.folder / BASE), "--resume", "auto", *self._options, *own)
        try:
            return TrialProcess.start(self.folder / trial.name, arguments)
        except OSError as error:
            raise CheckpointError(f"cannot start {trial.name}: {error.strerror}") from None

    def _stop(self, running: Mapping[int, tuple[Trial, TrialProcess]]) -> None:
        """Stop what still runs, wait until it has saved its checkpoint, and record it."""
        try:
            for _, process in running.values():
                process.stop()
            for _, process in running.values():
                process.process.wait()
        except BaseException:
            # a second signal
            for _, process in running.values():
                process.stop()
            raise
        for trial, process in running.values():
            self._finish(trial, process)

    def _finish(self, trial: Trial, process: TrialProcess) -> None:
        """Record and report a process that has ended."""
        code = process.exit_code
        assert code is not None
        outcome = measure(RunFolder(self.folder / trial.name), Outcome(trial.name))
        if code == 0 and outcome.best_val_loss is not None:
            outcome = replace(outcome, status="finished")
            self._report(
                f"{self._number(trial)}: validation loss {outcome.best_val_loss:.4f} nats per token "
                f"at step {outcome.best_step}, {outcome.seconds:.1f} s"
            )
        elif code in STOPPED:
            outcome = replace(outcome, status="stopped")
            self._report(f"{self._number(trial)}: stopped at step {outcome.step or 0}")
        else:
            why = f"ended by {_signal_name(-code)}" if code < 0 else process.last_line()
            outcome = replace(outcome, status="failed", message=why)
            self._report(f"{self._number(trial)}: failed ({why}); see {process.folder / CONSOLE}")
        self.outcomes[trial.name] = outcome
        self._save()

    def _save(self) -> None:
        save_outcomes(self.folder, self.trials, list(self.outcomes.values()))

    def _number(self, trial: Trial) -> str:
        return f"trial {self.trials.index(trial) + 1} of {len(self.trials)}"


def _signal_name(number: int) -> str:
    """Return the name of a signal; those for applications have numbers only."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")
