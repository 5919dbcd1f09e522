"""Train from Python, by the trainer of the command."""

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from gpt.api.live_curve import LiveCurve
from gpt.api.run import Run
from gpt.checkpoint import configuration_around, find_checkpoint
from gpt.config.composing import Source, compose_config
from gpt.config.plugins import load_plugins
from gpt.config.sources import LoadedConfig, name_of_text, to_name
from gpt.data.locating import store_text
from gpt.data.own_text import fit_recipe, for_checkpoint
from gpt.extras.snapshots import Snapshots
from gpt.system.device import require_own_threads
from gpt.system.distributed import joined
from gpt.system.environment import Settings, expand_home, read_launch, read_settings
from gpt.system.errors import ConfigError, DataError
from gpt.system.progress import Report, in_notebook, print_line, silent
from gpt.training.callbacks import AnyCallback, as_callbacks
from gpt.training.monitor import Console, Monitor
from gpt.training.resume import AUTO, runs_of
from gpt.training.signals import Interrupted
from gpt.training.train import Host, build_trainer
from gpt.training.trainer import Trainer

Texts = str | Path | Sequence[str | Path]
"""A text, or several."""


@torch.inference_mode(False)  # the caller may be in that mode, in which nothing can be trained
def train(  # noqa: PLR0913 - all but one are keywords, as a notebook gives them
    path: Texts | None = None,
    *,
    text: str | None = None,
    config: Source | None = None,
    resume: str | Path | None = None,
    allow_config_change: bool = False,
    callbacks: Sequence[AnyCallback] = (),
    plugins: str | Path | Sequence[str | Path] = (),
    offline: bool = False,
    report: Report | None = print_line,
    **keywords: Any,
) -> Run:
    """Train a model and return its run; the result is that of `gpt train`, down to the last bit.

    Args:
        path: a text to learn from: a file, a folder, or a glob pattern; or several, in a list, as
            `data.path`.
        text: the text itself, in place of `path`.
        config: a YAML file, the name of a recipe such as `shakespeare`, a `Config`, or a dict of
            sections. None: the recipe that fits the text, as `gpt new` writes it.
        resume: auto: continue this run from its newest readable checkpoint, or start it. A run or a
            checkpoint, by its path or its name below `runs`: continue from there, by the run's own
            configuration where none is given.
        allow_config_change: resume even though the configuration differs from the checkpoint's.
        callbacks: `gpt.Callback` objects, or functions that are called after each step with a
            `StepEvent`.
        plugins: a Python file, or several, to load first.
        offline: never use the network.
        report: takes lines for the user. None: there are no lines, and no progress bar.
        keywords: values that replace those of `config`: a section as a dict,
            `model=dict(n_layer=2)`, or a key that only one section has, `max_steps=200`. `name` and
            `seed` are those of the run.

    Returns:
        The run. Ctrl-C at a prompt, or the stop button of a notebook, saves the run and returns it
        as it is then.

    Raises:
        GPTError: the configuration, the data, the device or the run folder cannot be used.
        KeyboardInterrupt: Ctrl-C in a program; the run is saved.
    """
    _require_plain_torch()
    if plugins:  # before the configuration is read, which may name what they add
        load_plugins(plugins)
    if resume is not None and not isinstance(resume, str | Path):
        raise ConfigError(f'resume is {resume!r}, expected "auto", a path, or None')
    resume_from = None if resume is None else str(resume)
    listeners = as_callbacks(callbacks)
    settings = read_settings(offline)
    has_source = any(source is not None for source in (path, text, config))
    names_run = resume_from is not None and resume_from != AUTO
    if names_run and not has_source:
        checkpoint = _find_resumed(str(resume_from), keywords)
        # The path, since the name would be looked for again, below the `run.dir` of that run.
        resume_from = str(checkpoint)
        config = configuration_around(checkpoint)
    with joined(read_launch()) as world:
        tell: Report = silent
        # Each line is said once, by the first of several processes.
        if report is not None and world.is_main:
            tell = report
        loaded = world.rank_zero(lambda: _configure(path, text, config, keywords, settings, tell))
        # After a fork, PyTorch's threads do not exist, and a pass on several would hang.
        threads = loaded.config.run.threads or torch.get_num_threads()
        require_own_threads(threads, "set run.threads to 1")
        if loaded.config.run.snapshots:
            listeners = [Snapshots(tell), *listeners]
        trainer = build_trainer(
            loaded,
            Host(settings, tell, world),
            resume=resume_from,
            allow_config_change=allow_config_change,
            callbacks=listeners,
            progress=_build_progress(loaded, tell),
        )
        return _finish(trainer)


def _require_plain_torch() -> None:
    """Raise ConfigError where settings of the caller would change what is computed."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ConfigError(
            "gpt.train is called under torch.autocast; leave it before, and choose the type by "
            "run.dtype"
        )
    if torch.get_default_device().type != "cpu":
        raise ConfigError(
            "torch's default device is not the CPU; set it back, and choose the device by "
            "run.device"
        )


def _find_resumed(resume: str, keywords: Mapping[str, Any]) -> Path:
    """Return the checkpoint to resume from, whose configuration is not known yet.

    Its name is looked for in the folder of runs, which the keywords may set.
    """
    # Only this section: the other keywords may be right with the configuration of the run alone.
    sections = {"run": keywords["run"]} if "run" in keywords else {}
    runs = runs_of(compose_config(None, sections).config)
    return find_checkpoint(Path(resume), runs, prefer="last")


def _build_progress(loaded: LoadedConfig, report: Report) -> Monitor | None:
    """Return what shows the progress: a curve in a notebook, a bar elsewhere, or None: nothing."""
    max_steps = loaded.config.train.max_steps
    if report is silent:
        return None
    if in_notebook():
        return LiveCurve(loaded.name, max_steps)
    if sys.stderr is None:  # a program without a console
        return None
    return Console(max_steps, sys.stderr)


def _configure(
    path: Texts | None,
    text: str | None,
    source: Source | None,
    keywords: Mapping[str, Any],
    settings: Settings,
    report: Report,
) -> LoadedConfig:
    """Return the configuration that the arguments of `train` mean, once a `text` is in a file."""
    if path is None and text is None:
        if source is None and not keywords:
            raise ConfigError(
                'nothing to train on: give a path, text="..." or config="shakespeare"'
            )
        return compose_config(source, keywords)
    if path is not None and text is not None:
        raise ConfigError("path and text are given; leave one of them out")
    if text is not None:
        path = _store(text, source, keywords)
    assert path is not None
    keywords = _with_path(keywords, path)
    if source is None:
        chosen = compose_config(None, keywords).config
        source, _ = fit_recipe(chosen.data, settings, report)
        if chosen.train.init_from is not None:
            source = for_checkpoint(source)
    loaded = compose_config(source, keywords)
    if loaded.file is not None:
        return loaded
    # Without a YAML file, the run is named after the text.
    name = "text" if text is not None else _name_of(path)
    return LoadedConfig(loaded.config, name)


def _name_of(path: Texts) -> str:
    """Return the name of a run after its text, or after all its texts."""
    texts = [path] if isinstance(path, str | Path) else path
    names = [name_of_text(text) for text in texts]
    return to_name("-".join(names))


def _store(text: str, source: Source | None, keywords: Mapping[str, Any]) -> Path:
    """Write a text into the data folder, where the commands find it too; return its path."""
    if not isinstance(text, str):
        raise DataError(f"text is a {type(text).__name__}, expected str")
    if not text:
        raise DataError("the text is empty")
    data = compose_config(source, keywords).config.data
    return store_text(text, expand_home(data.dir, "data.dir"))


def _with_path(keywords: Mapping[str, Any], path: Texts) -> Mapping[str, Any]:
    """Return the keywords with the path of the text added to those of the section `data`."""
    data = keywords.get("data", {})
    if isinstance(data, BaseModel):
        data = data.model_dump(exclude_unset=True)
    if not isinstance(data, Mapping):
        return keywords  # an error, which `compose_config` reports
    return {**keywords, "data": {**data, "source": "file", "path": path}}


def _finish(trainer: Trainer) -> Run:
    """Train, and return the run; a signal that stops it goes to the caller, once it is saved."""
    try:
        trainer.run()
    except Interrupted as stopped:
        _tell_how_to_continue(str(stopped), trainer)
        # A shell's exit code for a signal is 128 and the number of the signal.
        signal_number = stopped.exit_code - 128
        if signal_number != signal.SIGINT:
            # The trainer has given the signals back to the handlers of the caller.
            signal.raise_signal(signal_number)
        is_interactive = hasattr(sys, "ps1")  # the prompt of Python, which notebooks have, too
        if not is_interactive:
            raise KeyboardInterrupt from None
    except BaseException as error:
        if trainer.callbacks.failed:
            _tell_how_to_continue(f"{type(error).__name__} in a callback", trainer)
        raise
    return Run(trainer.run_folder.path)


def _tell_how_to_continue(cause: str, trainer: Trainer) -> None:
    where = f"at step {trainer.state.step}, saved in {trainer.run_folder.path}"
    trainer.report(f'stopped by {cause} {where}; continue with the same call and resume="auto"')
