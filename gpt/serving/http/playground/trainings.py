"""Trainings from the page: what can be started, what runs, and how to stop it and go on."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpt import invocation
from gpt.config.loading import TEACHER_SUFFIX, load_config, override
from gpt.errors import ConfigError, DataError
from gpt.plugins import plugin_options
from gpt.progress import Report
from gpt.serving.http.playground.corpora import Corpora
from gpt.serving.http.playground.launcher import BusyError, Launcher, launched_process
from gpt.serving.http.playground.recipes import Recipes
from gpt.serving.http.playground.runs import Run, Runs


@dataclass(frozen=True)
class Training:
    """The training that runs, or the last one that this server started.

    Attributes:
        run: has its name alone until the run folder has a configuration.
        state: `starting` until the run is locked, then `training`; `stopping` while it saves; then `ended`.
        exit_code: exit code of the process; None while it runs, or if it was started elsewhere.
        lines: last ones of its console.
        command: as it could be typed; empty where it was started elsewhere.
        can_stop: this server knows its process.
    """

    run: Run
    state: Literal["starting", "training", "stopping", "ended"]
    exit_code: int | None
    lines: Sequence[str]
    command: str
    can_stop: bool


class Trainings:
    """Starts, watches and stops trainings, at most one at a time; the methods block, so they are for threads."""

    def __init__(self, runs: Runs, recipes: Recipes, corpora: Corpora, report: Report) -> None:
        self.recipes, self.corpora = recipes, corpora
        self._runs, self._report = runs, report
        self._launcher = Launcher(runs.folder)

    def status(self) -> Training | None:
        """Describe the training that runs, here or in another process, or else the last one from here."""
        launcher = self._launcher
        other = None if launcher.running else self._runs.being_trained()
        if other is not None:
            can_stop = launched_process(self._runs.folder / other) is not None
            return Training(self._runs.summary(other), "training", None, launcher.lines(other), "", can_stop)
        if launcher.name is None:
            return None
        name, code = launcher.name, launcher.exit_code
        shown = next((each for each in (name, name + TEACHER_SUFFIX) if each in self._runs.names()), None)
        run = Run(name) if shown is None else self._runs.summary(shown)
        state: Literal["starting", "training", "stopping", "ended"] = "training" if run.training else "starting"
        if code is not None:
            state = "ended"
        elif launcher.stopping:
            state = "stopping"
        command = invocation.command("train", *launcher.command[4:])
        return Training(run, state, code, launcher.lines(name), command, state in ("starting", "training"))

    def start(self, recipe: str, corpus: str | None, text: str | None, name: str | None) -> str:
        """Start a new run and return its name.

        Args:
            corpus: one of `corpora`; None: `text` is pasted.
            name: name of the run; None: the recipe's, with a number.

        Raises:
            BusyError: a training runs, or the name is taken.
            GPTError: recipe, corpus, text or name cannot be used.
        """
        self._check_idle()
        path = self.recipes.path(recipe)
        if path is None:
            raise ConfigError(f"there is no recipe {recipe[:100]!r}")
        name = name or self._free_name(recipe)
        target = _target(self._runs.folder, name)
        config = load_config(path, target).config  # checks the name before anything is written
        if text is not None:
            needed = (config.model.block_size + 1) / config.data.val_fraction
            if len(text) < needed:
                raise DataError(f"the text has {len(text):,} characters; this recipe needs {needed:,.0f}")
            corpus = self.corpora.paste(text)
        assert corpus is not None
        overrides = [*target, *self.corpora.overrides(corpus)]
        load_config(path, overrides)
        self._launcher.start(name, ["--config", str(path), *overrides], is_new=True)
        return name

    def resume(self, name: str) -> None:
        """Go on with a run; raise BusyError if a training runs, or the run has made all its steps."""
        self._check_idle()
        config = self._runs.get(name).path / "config.yaml"
        run, target = self._runs.summary(name), _target(self._runs.folder, name)
        load_config(config, target)
        if run.max_steps is not None and run.step >= run.max_steps and run.has_checkpoint:
            raise BusyError(f"{name} has made all its {run.max_steps:,} steps")
        self._launcher.start(name, ["--config", str(config), *target, "--resume", "auto"], is_new=False)

    def stop(self, name: str) -> None:
        """Let a training save a checkpoint and end; raise BusyError if it does not run, or no server started it."""
        if self._launcher.running and self._launcher.name == name:
            self._launcher.stop()
        elif self._runs.being_trained() != name:
            raise BusyError(f"{name[:100]!r} is not being trained")
        elif not self._launcher.stop_other(name):
            raise BusyError(f"{name} was not started from this page; press Ctrl-C where it was")

    @property
    def running(self) -> bool:
        """Whether a training that was started here runs."""
        return self._launcher.running

    def close(self) -> None:
        """Stop what was started here, since the server ends: it saves a checkpoint, by itself if need be."""
        if self.running:
            config = self._runs.folder / str(self._launcher.name) / "config.yaml"
            words = ["--config", str(config), *plugin_options(), "--resume", "auto"]
            self._report(
                f"stopping the training of {self._launcher.name}, which saves a checkpoint; go on with: "
                f"{invocation.command('train', *words)}"
            )
        self._launcher.stop(for_good=True)

    def _check_idle(self) -> None:
        busy = self._launcher.name if self._launcher.running else self._runs.being_trained()
        if busy is not None:
            raise BusyError(f"{busy} is being trained; one at a time")

    def _free_name(self, recipe: str) -> str:
        names = (f"{recipe}-{number}" for number in itertools.count(1))
        return next(name for name in names if not (self._runs.folder / name).exists())


def _target(runs: Path, name: str) -> list[str]:
    """Return the overrides that name a run."""
    return [override("run.name", name), override("run.dir", str(runs))]
