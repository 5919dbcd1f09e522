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
from gpt.data.own_text import fit_recipe
from gpt.extras.snapshots import Snapshots
from gpt.system.device import require_own_threads
from gpt.system.distributed import joined
from gpt.system.environment import Settings, expand_home, read_launch, read_settings
from gpt.system.errors import ConfigError, DataError
from gpt.system.progress import Report, in_notebook, print_line, silent
from gpt.training.callbacks import AnyCallback, as_callbacks
from gpt.training.naming import runs_of
from gpt.training.resume import AUTO
from gpt.training.signals import Interrupted
from gpt.training.train import TrainRequest, build_trainer
from gpt.training.trainer import Trainer

Texts = str | Path | Sequence[str | Path]
"""A text, or several."""


@torch.inference_mode(False)  # and with gradients
def train(
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
        path: a text to learn from: a file, a folder, or a glob pattern; or several, in a list, as `data.path`.
        text: the text itself, in place of `path`.
        config: a YAML file, the name of a recipe such as `shakespeare`, a `Config`, or a dict of sections. None: the
            recipe that fits the text, as `gpt new` writes it.
        resume: auto: continue this run from its newest readable checkpoint, or start it; a run or a checkpoint, by its
            path or its name below `runs`: continue from there, without `config` by the run's own configuration.
        allow_config_change: resume even though the configuration differs from the checkpoint's.
        callbacks: `gpt.Callback` objects, or functions that are called after each step with a `StepEvent`.
        plugins: Python files to load first, or one.
        offline: never use the network.
        report: takes lines for the user; None: there are none, and no progress bar.
        keywords: values that replace those of `config`: a section as a dict, `model=dict(n_layer=2)`, or a key that
            only one section has, `max_steps=200`. `name` and `seed` are those of the run.

    Returns:
        The run. After Ctrl-C, or the stop button of a notebook, it is saved; at a prompt it is returned as it is.

    Raises:
        GPTError: the configuration, the data, the device or the run folder cannot be used.
        KeyboardInterrupt: Ctrl-C in a program; the run is saved.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ConfigError("gpt.train is called under torch.autocast; leave it before, and choose the type by run.dtype")
    if torch.get_default_device().type != "cpu":
        raise ConfigError("torch's default device is not the CPU; set it back, and choose the device by run.device")
    if plugins:
        load_plugins(plugins)
    if resume is not None and not isinstance(resume, str | Path):
        raise ConfigError(f'resume is {resume!r}, expected "auto", a path, or None')
    listeners = as_callbacks(callbacks)
    settings, start = read_settings(offline), None if resume is None else str(resume)
    if start not in (None, AUTO) and path is None and text is None and config is None:
        # of the keywords only where runs are: the others are perhaps right only with that configuration
        places = compose_config(None, {"run": keywords["run"]} if "run" in keywords else {}).config
        checkpoint = find_checkpoint(Path(str(start)), runs_of(places), prefer="last")
        start, config = str(checkpoint), configuration_around(checkpoint)
    with joined(read_launch()) as world:
        tell = report if report is not None and world.is_main else silent
        loaded = world.rank_zero(lambda: _configure(path, text, config, keywords, settings, tell))
        require_own_threads(loaded.config.run.threads or torch.get_num_threads(), "set run.threads to 1")
        if loaded.config.run.snapshots:
            listeners = [Snapshots(tell), *listeners]
        shown = tell is not silent and in_notebook()
        display = LiveCurve(loaded.name, loaded.config.train.max_steps) if shown else None
        request = TrainRequest(loaded, settings, tell, start, allow_config_change, world, listeners, display)
        return _finish(build_trainer(request), tell)


def _configure(
    path: Texts | None,
    text: str | None,
    source: Source | None,
    keywords: Mapping[str, Any],
    settings: Settings,
    report: Report,
) -> LoadedConfig:
    if path is None and text is None:
        if source is None and not keywords:
            raise ConfigError('nothing to train on: give a path, text="..." or config="shakespeare"')
        return compose_config(source, keywords)
    if path is not None and text is not None:
        raise ConfigError("path and text are given; leave one of them out")
    if text is not None:
        path = _store(text, source, keywords)
    assert path is not None
    keywords = _with_path(keywords, path)
    if source is None:
        source, _ = fit_recipe(compose_config(None, keywords).config.data, settings, report)
    loaded = compose_config(source, keywords)
    name = "text" if text is not None else _name_of(path)
    return loaded if loaded.file is not None else LoadedConfig(loaded.config, name)


def _name_of(path: Texts) -> str:
    """Return a name for a run that is like that of its text, or like those of all its texts."""
    texts = [path] if isinstance(path, str | Path) else path
    return to_name("-".join(map(name_of_text, texts)))


def _store(text: str, source: Source | None, keywords: Mapping[str, Any]) -> Path:
    """Write a text below the data folder, where the commands find it too; return its path."""
    if not isinstance(text, str):
        raise DataError(f"text is a {type(text).__name__}, expected str")
    if not text:
        raise DataError("the text is empty")
    data = compose_config(source, keywords).config.data
    return store_text(text, expand_home(data.dir, "data.dir"))


def _with_path(keywords: Mapping[str, Any], path: Texts) -> Mapping[str, Any]:
    data = keywords.get("data", {})
    if isinstance(data, BaseModel):
        data = data.model_dump(exclude_unset=True)
    if not isinstance(data, Mapping):
        return keywords  # an error of the keyword
    return {**keywords, "data": {**data, "source": "file", "path": path}}


def _finish(trainer: Trainer, report: Report) -> Run:
    try:
        trainer.run()
    except Interrupted as stopped:
        _tell_how_to_continue(str(stopped), trainer, report)
        if stopped.exit_code != 128 + signal.SIGINT:
            signal.raise_signal(stopped.exit_code - 128)  # by the handlers of the caller
        if not hasattr(sys, "ps1"):  # a program, not a prompt or a notebook
            raise KeyboardInterrupt from None
    except BaseException as error:
        if trainer.callbacks.failed:
            _tell_how_to_continue(f"{type(error).__name__} in a callback", trainer, report)
        raise
    return Run(trainer.run_folder.path)


def _tell_how_to_continue(cause: str, trainer: Trainer, report: Report) -> None:
    where = f"at step {trainer.state.step}, saved in {trainer.run_folder.path}"
    report(f'stopped by {cause} {where}; continue with the same call and resume="auto"')
