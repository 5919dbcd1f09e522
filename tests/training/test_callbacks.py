import json
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import read_checkpoint
from gpt.distributed import World
from gpt.environment import Launch
from gpt.errors import ConfigError, InputError, PeerError
from gpt.training.callbacks import (
    Callback,
    CallbackGroup,
    CheckpointEvent,
    EvaluationEvent,
    StepEvent,
    as_callbacks,
)
from gpt.training.trainer import Trainer
from training.sessions import start_session


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_step(self, event: StepEvent) -> None:
        self.events.append(("step", event.step, event.loss, event.learning_rate, event.gradient_norm))

    def on_evaluation(self, event: EvaluationEvent) -> None:
        self.events.append(("evaluation", event.step, event.loss, event.bits_per_char, event.sample))

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.events.append(("checkpoint", event.step, event.folder, event.is_best))


def lines(trainer: Trainer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trainer.run_folder.metrics.read_text(encoding="utf-8").splitlines()]


def test_callbacks_see_what_the_metrics_and_the_folder_hold(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer = start_session(tmp_path, callbacks=[recorder])
    trainer.run()
    rows = lines(trainer)
    steps = [
        ("step", r["step"], r["train/loss"], r["train/learning_rate"], r["train/grad_norm"])
        for r in rows
        if "train/loss" in r
    ]
    assert [event for event in recorder.events if event[0] == "step"] == steps
    values = [("evaluation", r["step"], r["val/loss"], r["val/bits_per_char"]) for r in rows if "val/loss" in r]
    assert [event[:4] for event in recorder.events if event[0] == "evaluation"] == values
    samples = [event[4] for event in recorder.events if event[0] == "evaluation"]
    assert samples[-1] + "\n" == (trainer.run_folder.samples / "step-000006.txt").read_text(encoding="utf-8")
    saved = [event for event in recorder.events if event[0] == "checkpoint"]
    assert [event[1] for event in saved] == [0, 3, 6]
    best = trainer.run_folder.pointed("best")
    assert [event[2] for event in saved if event[3]][-1] == best
    assert len(steps) == 6


def test_what_is_logged_stands_in_the_metrics(tmp_path: Path) -> None:
    trainer = start_session(tmp_path, callbacks=as_callbacks([lambda event: event.log("mine/double", 2 * event.step)]))
    trainer.run()
    assert [row["mine/double"] for row in lines(trainer) if "mine/double" in row] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(("name", "value"), [("step", 1), ("train/loss", 1), ("", 1), (3, 1), ("x", "y"), ("x", None)])
def test_a_name_or_value_that_cannot_be_logged_is_refused(tmp_path: Path, name: Any, value: Any) -> None:
    trainer = start_session(tmp_path, callbacks=as_callbacks([lambda event: event.log(name, value)]))
    with pytest.raises(InputError, match=r"^log: "):
        trainer.run()


@pytest.mark.parametrize("hook", ["on_step", "on_evaluation", "on_checkpoint"])
def test_stop_ends_the_run_evaluated_and_saved(tmp_path: Path, hook: str) -> None:
    callback = Callback()
    setattr(callback, hook, lambda event: event.step == (3 if hook != "on_step" else 2) and event.stop())
    trainer = start_session(tmp_path, callbacks=[callback])
    state = trainer.run()
    assert state.step == state.evaluated_step == (3 if hook != "on_step" else 2)
    last = trainer.run_folder.pointed("last")
    assert last is not None
    assert read_checkpoint(last).state["step"] == state.step


@pytest.mark.parametrize("hook", ["on_step", "on_evaluation", "on_checkpoint"])
def test_an_error_of_a_callback_is_raised_after_the_run_was_saved(tmp_path: Path, hook: str) -> None:
    """The run then continues to the same weights as one without an interruption."""
    error = ZeroDivisionError("mine")

    def fail(event: Any) -> None:
        if event.step == 3:
            raise error

    callback, recorder = Callback(), Recorder()
    setattr(callback, hook, fail)
    trainer = start_session(tmp_path, callbacks=[callback, recorder])
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.run()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert recorder.events[-1][1] <= 3
    resumed = start_session(tmp_path, resume="auto")
    assert resumed.state.step == 3
    resumed.run()
    whole = start_session(tmp_path, "run.name=whole")
    whole.run()
    for name, weight in whole.model.state_dict().items():
        assert weight.equal(resumed.model.state_dict()[name])


@pytest.mark.parametrize("given", [[Recorder], [5], [None], Recorder(), print])
def test_what_is_no_callback_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^callbacks[^\n]*expected a"):
        as_callbacks(given)


class OtherRank(World):
    """Rank 1 of two; rank 0 says `said`."""

    def __init__(self, said: int) -> None:
        super().__init__(Launch(rank=1, size=2))
        self.said = said

    def all_reduce_max(self, value: int) -> int:
        return max(value, self.said)


def test_another_rank_calls_nothing_and_ends_with_rank_0(tmp_path: Path) -> None:
    trainer, recorder = start_session(tmp_path), Recorder()
    trainer.world = OtherRank(1)
    group = CallbackGroup([recorder], trainer)
    group.evaluation(1.0, 1.0, "")
    group.agree()
    assert (group.stopped, group.failed, recorder.events) == (True, False, [])
    trainer.world.said = 2
    with pytest.raises(PeerError):
        group.agree()
    trainer.run_folder.unlock()
