"""User callbacks: called at the start, after steps, evaluations and checkpoints, and at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from gpt.checkpoint import RunFolder
from gpt.config import Config
from gpt.config.suggestions import nearest
from gpt.data.dataset import Dataset
from gpt.model import GPT
from gpt.system.distributed import World
from gpt.system.errors import ConfigError, InputError, PeerError
from gpt.training.monitor import Monitor
from gpt.training.step import StepResult

RESERVED_PREFIXES = ("train/", "val/", "speed/")
"""The beginnings of the names of the metrics that every training records itself."""


class Callback:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    The methods are called in the process and thread of the training, which waits for them. All
    methods but `on_gradients` are called in rank 0 only.

    Attributes:
        only_observes: whether the training makes the same updates without this callback, since the
            callback changes neither the model, nor its modules' hooks, nor the gradients. If all
            callbacks only observe, a step on a GPU may be a CUDA graph, which runs no Python.
    """

    only_observes: ClassVar[bool] = False

    def on_start(self, event: StartEvent) -> None:
        """React to the start of a new or resumed run, before the first step of this process."""

    def on_step(self, event: StepEvent) -> None:
        """React to an optimizer step."""

    def on_gradients(self, event: GradientEvent) -> None:
        """Change the gradients after clipping, before the update.

        Every process calls this method, since all processes have to make the same update.
        """

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """React to an evaluation, before its checkpoint is written."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """React to a checkpoint that was written."""

    def on_end(self, event: EndEvent) -> None:
        """React to the end of the training, after its last checkpoint.

        This method is not called after an error or a signal, but `on_close` is.
        """

    def on_close(self, event: CloseEvent) -> None:
        """Free what the callback holds, such as files, even after an error or a signal."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""The methods that a subclass may override."""


class Training(Protocol):
    """Read-only view of a `Trainer`, for callbacks."""

    @property
    def config(self) -> Config: ...
    @property
    def model(self) -> GPT: ...
    @property
    def dataset(self) -> Dataset: ...
    @property
    def run_folder(self) -> RunFolder: ...
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
        """Record a number of this step in metrics.jsonl and TensorBoard.

        Raises:
            InputError: the training itself uses the name, or the value is not a single number.
        """
        # Each line of metrics.jsonl has the key `step` for the number of the step.
        is_possible_name = isinstance(name, str) and name not in ("", "step")
        if not is_possible_name or name.startswith(RESERVED_PREFIXES):
            raise InputError(
                f"log: the name {name!r} is taken; choose another, such as 'mine/{name}'"
            )
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            # A tensor with several numbers raises RuntimeError.
            type_name = type(value).__name__
            raise InputError(f"log: {name} is a {type_name}, expected one number") from None
        self.trainer.monitor.scalars(self.step, {name: number})

    def stop(self) -> None:
        """Ask for the end of the training, which first evaluates and saves this step."""
        self.trainer.callbacks.is_asked_to_stop = True


@dataclass(frozen=True)
class StartEvent(Event):
    """The training begins, at step 0 or at the step of the checkpoint that it resumes from."""

    hook: ClassVar = "on_start"


@dataclass(frozen=True)
class StepEvent(Event):
    """An optimizer step was made.

    Attributes:
        is_logged: whether the training has read the loss back for its own metrics, so that reading
            it once more costs nothing.
    """

    hook: ClassVar = "on_step"
    learning_rate: float
    is_logged: bool
    _result: StepResult

    @property
    def loss(self) -> float:
        """Return the loss before the update, in nats per token.

        On a GPU, reading it waits for the step.
        """
        return float(self._result.loss)

    @property
    def gradient_norm(self) -> float:
        """Return the global gradient norm before clipping.

        On a GPU, reading it waits for the step.
        """
        return float(self._result.gradient_norm)


@dataclass(frozen=True)
class GradientEvent(Event):
    """Gradients were computed and clipped.

    Attributes:
        generator: draws random numbers on the CPU. It is seeded with the run's seed and the step,
            so that all processes draw the same numbers.
    """

    hook: ClassVar = "on_gradients"
    generator: torch.Generator


@dataclass(frozen=True)
class EvaluationEvent(Event):
    """An evaluation was made.

    Attributes:
        loss: validation loss, in nats per token.
        bits_per_char: the same loss in bits per character.
        sample: text that the model generated; empty if `train.sample_tokens` is 0.
    """

    hook: ClassVar = "on_evaluation"
    loss: float
    bits_per_char: float
    sample: str


@dataclass(frozen=True)
class CheckpointEvent(Event):
    """A checkpoint was written.

    Attributes:
        is_best: whether its validation loss is the lowest so far.
    """

    hook: ClassVar = "on_checkpoint"
    folder: Path
    is_best: bool


@dataclass(frozen=True)
class EndEvent(Event):
    """The training has ended: its steps are done, or a callback stopped it."""

    hook: ClassVar = "on_end"


@dataclass(frozen=True)
class CloseEvent(Event):
    """The training is over: it has ended, or a signal or an error has interrupted it."""

    hook: ClassVar = "on_close"


AnyEvent = StartEvent | StepEvent | GradientEvent | EvaluationEvent | CheckpointEvent | EndEvent
"""The events of `CallbackGroup.call`; a `CloseEvent` is passed on by `CallbackGroup.close`."""
AnyCallback = Callback | Callable[[StepEvent], Any]
"""A `Callback`, or a function that is called after each step."""


class _StepFunction(Callback):
    def __init__(self, function: Callable[[StepEvent], Any]) -> None:
        self._function = function

    def on_step(self, event: StepEvent) -> None:
        self._function(event)


def as_callbacks(given: Sequence[AnyCallback]) -> list[Callback]:
    """Return the given callbacks; a plain function becomes a callback that has only `on_step`.

    Raises:
        ConfigError: an item is neither a callback nor a function, or a callback has a method whose
            name begins with `on_` but is not the name of a hook.
    """
    if not isinstance(given, Sequence):
        raise ConfigError(f"callbacks is {given!r}, expected a list, such as [watch]")
    callbacks: list[Callback] = []
    for item in given:
        # A class is callable too. A user who gives one has probably forgotten to make an object.
        is_function = callable(item) and not isinstance(item, type)
        if isinstance(item, Callback):
            _refuse_unknown_hooks(item)
            callbacks.append(item)
        elif is_function:
            callbacks.append(_StepFunction(item))
        else:
            raise ConfigError(
                f"callbacks: got {item!r}, "
                "expected a function or an object of a subclass of gpt.Callback"
            )
    return callbacks


def _refuse_unknown_hooks(callback: Callback) -> None:
    """Raise ConfigError for a method such as `on_evaluate`, which would never be called."""
    for name in dir(callback):
        is_hook_like = name.startswith("on_") and callable(getattr(callback, name))
        if is_hook_like and name not in HOOKS:
            raise ConfigError(
                f"callbacks: {type(callback).__name__}.{name} would never be called"
                f"{_suggest_hook(name)}; the hooks are {', '.join(HOOKS)}"
            )


def _suggest_hook(name: str) -> str:
    """Return a suggestion of the hook that was probably meant, as part of a message, or ""."""
    # The common beginning `on_` makes any two names similar. So a hook is suggested only if the
    # names are similar without it.
    rests_of_hooks = [hook.removeprefix("on_") for hook in HOOKS]
    if not nearest(name.removeprefix("on_"), rests_of_hooks):
        return ""
    return nearest(name, HOOKS)


class _Request(IntEnum):
    """What the callbacks of a process ask of all processes, which follow the highest request."""

    CONTINUE = 0
    STOP = 1
    FAIL = 2


class CallbackGroup:
    """Calls the callbacks of rank 0, and tells all processes what the callbacks ask for.

    After an error of a callback, `call` calls no callback any more, and `sync_across_ranks` raises
    the error. `close` still calls every callback.

    Attributes:
        gradient_callbacks: the callbacks that change gradients, which every process calls.
        is_asked_to_stop: whether a callback of this process wants the training to end.
        stopped: whether all processes know that the training is to end.
        failed: whether all processes know that a callback has raised an error.
    """

    def __init__(self, callbacks: Sequence[Callback], world: World) -> None:
        self._world = world
        self._callbacks: Sequence[Callback] = callbacks if world.is_main else ()
        # Unlike the other callbacks, these are called in every process.
        self.gradient_callbacks = [
            callback for callback in callbacks if _changes_gradients(callback)
        ]
        # A script may give callbacks to rank 0 only. All processes have to know of them, since all
        # or none communicate in `sync_across_ranks`: a process that did so alone would wait
        # forever.
        self._any_rank_has_callbacks = world.all_reduce_max(len(callbacks)) > 0
        self.is_asked_to_stop = False
        self.stopped = False
        self.failed = False
        self._error: Exception | SystemExit | KeyboardInterrupt | None = None

    def call(self, event: AnyEvent) -> None:
        """Call the method of each callback for an event.

        If a callback fails, `sync_across_ranks` raises its error later. If it were raised here,
        this process would end, and the others would wait for it in their next communication.
        """
        callbacks = self._callbacks
        if isinstance(event, GradientEvent):
            callbacks = self.gradient_callbacks
        for callback in callbacks:
            if self._error is not None:
                return
            try:
                hook = getattr(callback, event.hook)  # the method, such as `callback.on_step`
                hook(event)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                # `sys.exit` in a callback and Ctrl-C end the training like an error.
                self._error = error

    def close(self, event: CloseEvent) -> None:
        """Call `on_close` of every callback, also after one of them has failed."""
        for callback in self._callbacks:
            callback.on_close(event)

    def sync_across_ranks(self, then_raise: bool = True) -> None:
        """Tell all processes whether a callback of any process has asked for the end, or failed.

        The attributes `stopped` and `failed` then have the same values in all processes.

        Args:
            then_raise: whether to raise an error of a callback now; otherwise a later call raises
                it.

        Raises:
            Exception: a callback of this process has failed; this is its error.
            PeerError: a callback of another process has failed.
        """
        # This value is the same in all processes, so that none of them communicates alone below.
        if not self._any_rank_has_callbacks:
            return
        request = _Request.CONTINUE
        if self.is_asked_to_stop:
            request = _Request.STOP
        if self._error is not None:
            request = _Request.FAIL
        # All processes follow the strongest request of any process.
        strongest = self._world.all_reduce_max(request)
        self.stopped = strongest >= _Request.STOP
        self.failed = strongest >= _Request.FAIL
        if self.failed and then_raise:
            if self._error is not None:
                raise self._error
            # A callback has failed in another process, which reports the error. This process only
            # ends, with the exit code 1 of an unexpected error.
            raise PeerError(1)


def _changes_gradients(callback: Callback) -> bool:
    return type(callback).on_gradients is not Callback.on_gradients
