"""User callbacks: called after steps, evaluations and checkpoints, and at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from gpt.config import Config
from gpt.config.suggestions import nearest
from gpt.data.dataset import Dataset
from gpt.model import GPT
from gpt.system.distributed import World
from gpt.system.errors import ConfigError, InputError, PeerError
from gpt.training.monitor import Monitor
from gpt.training.step import StepResult

RESERVED_PREFIXES = ("train/", "val/", "speed/")
"""What the names of a training's own metrics begin with."""


class Callback:
    """Base class of callbacks; a subclass overrides what it needs.

    They are called in the process and thread of the training, which waits for them; all but
    `on_gradients` in rank 0 only.

    Attributes:
        only_observes: whether the training makes the same updates without this callback, since it
            leaves the model, its modules' hooks and the gradients as they are. If all callbacks only
            observe, a step on a GPU may be a CUDA graph, which runs no Python.
    """

    only_observes: ClassVar[bool] = False

    def on_step(self, event: StepEvent) -> None:
        """React to an optimizer step."""

    def on_gradients(self, event: GradientEvent) -> None:
        """Change the gradients after clipping, before the update; this one is called in every process."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """React to an evaluation, before its checkpoint is written."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """React to a checkpoint that was written."""

    def on_end(self, event: EndEvent) -> None:
        """React to the end of the training, after its last checkpoint; not called after an error or a signal."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Training(Protocol):
    """What a callback may look at of a `Trainer`."""

    @property
    def config(self) -> Config: ...
    @property
    def model(self) -> GPT: ...
    @property
    def dataset(self) -> Dataset: ...
    @property
    def monitor(self) -> Monitor: ...
    @property
    def callbacks(self) -> CallbackGroup: ...


@dataclass(frozen=True)
class Event:
    """What a callback receives; `step` is the number of optimizer steps done so far."""

    trainer: Training
    step: int

    def log(self, name: str, value: float) -> None:
        """Record a number of this step in metrics.jsonl and TensorBoard, by a name that the training does not use."""
        if not isinstance(name, str) or not name or name == "step" or name.startswith(RESERVED_PREFIXES):
            raise InputError(f"log: the name {name!r} is taken; choose another, such as 'mine/{name}'")
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"log: {name} is a {type(value).__name__}, expected one number") from None
        self.trainer.monitor.scalars(self.step, {name: number})

    def stop(self) -> None:
        """End the training after an evaluation and a checkpoint of this step."""
        self.trainer.callbacks.is_asked_to_stop = True


@dataclass(frozen=True)
class StepEvent(Event):
    """An optimizer step was made."""

    hook: ClassVar = "on_step"
    learning_rate: float
    _result: StepResult

    @property
    def loss(self) -> float:
        """Return the loss before the update, in nats per token; on a GPU, reading it waits for the step."""
        return float(self._result.loss)

    @property
    def gradient_norm(self) -> float:
        """Return the global gradient norm before clipping; on a GPU, reading it waits for the step."""
        return float(self._result.gradient_norm)


@dataclass(frozen=True)
class GradientEvent(Event):
    """Gradients were computed and clipped."""

    hook: ClassVar = "on_gradients"
    generator: torch.Generator  # on the CPU, seeded by the run's seed and the step: alike in all processes


@dataclass(frozen=True)
class EvaluationEvent(Event):
    """An evaluation was made."""

    hook: ClassVar = "on_evaluation"
    loss: float  # validation loss, in nats per token
    bits_per_char: float  # the same in bits per character
    sample: str  # text that the model generated; empty with `train.sample_tokens` 0


@dataclass(frozen=True)
class CheckpointEvent(Event):
    """A checkpoint was written; `is_best`: its validation loss is the lowest so far."""

    hook: ClassVar = "on_checkpoint"
    folder: Path
    is_best: bool


@dataclass(frozen=True)
class EndEvent(Event):
    """The training has ended: its steps are done, or a callback stopped it."""

    hook: ClassVar = "on_end"


AnyEvent = StepEvent | GradientEvent | EvaluationEvent | CheckpointEvent | EndEvent
AnyCallback = Callback | Callable[[StepEvent], Any]
"""A `Callback`, or a function that is called after each step."""


class _StepFunction(Callback):
    def __init__(self, function: Callable[[StepEvent], Any]) -> None:
        self._function = function

    def on_step(self, event: StepEvent) -> None:
        self._function(event)


def as_callbacks(given: Sequence[AnyCallback]) -> list[Callback]:
    """Return callbacks, of which a plain function is one with `on_step` only.

    Raises:
        ConfigError: one is neither, or has a method named as a hook is that there is not.
    """
    if not isinstance(given, Sequence):
        raise ConfigError(f"callbacks is {given!r}, expected a list, such as [watch]")
    for each in given:
        if isinstance(each, type) or not (isinstance(each, Callback) or callable(each)):
            raise ConfigError(
                f"callbacks: got {each!r}, expected a function or an object of a subclass of gpt.Callback"
            )
        _refuse_unknown_hooks(each)
    return [each if isinstance(each, Callback) else _StepFunction(each) for each in given]


def _refuse_unknown_hooks(callback: AnyCallback) -> None:
    if not isinstance(callback, Callback):  # a function, or an object that is one, has no hooks
        return
    for name in dir(callback):
        is_method = name.startswith("on_") and callable(getattr(callback, name))
        if is_method and name not in HOOKS:
            # all begin alike, which would make any two look similar
            hint = nearest(name, HOOKS) if nearest(name[3:], [hook[3:] for hook in HOOKS]) else ""
            raise ConfigError(
                f"callbacks: {type(callback).__name__}.{name} would never be called{hint}; "
                f"the hooks are {', '.join(HOOKS)}"
            )


class CallbackGroup:
    """Calls the callbacks of rank 0, and tells all processes of a training what they ask for.

    After an error no callback is called any more; `sync_across_ranks` raises it.
    """

    def __init__(self, callbacks: Sequence[Callback], world: World) -> None:
        self._callbacks = callbacks if world.is_main else ()
        self.of_gradients = [each for each in callbacks if type(each).on_gradients is not Callback.on_gradients]
        self._world = world
        self._is_used = world.all_reduce_max(len(callbacks)) > 0
        self.is_asked_to_stop = False
        self._error: Exception | SystemExit | KeyboardInterrupt | None = None
        self.stopped, self.failed = False, False

    def call(self, event: AnyEvent) -> None:
        """Call the method for an event."""
        for callback in self.of_gradients if isinstance(event, GradientEvent) else self._callbacks:
            if self._error is not None:
                return
            try:
                getattr(callback, event.hook)(event)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                self._error = error

    def sync_across_ranks(self, then_raise: bool = True) -> None:
        """Set `stopped` and `failed` in all processes; raise a callback's error, in others than rank 0 a PeerError."""
        if not self._is_used:
            return
        code = self._world.all_reduce_max(2 if self._error is not None else int(self.is_asked_to_stop))
        self.stopped, self.failed = code > 0, code > 1
        if self.failed and then_raise:
            raise self._error or PeerError(1)
