import json
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import read_checkpoint
from gpt.distributed import World
from gpt.system.environment import Launch
from gpt.system.errors import ConfigError, InputError, PeerError
from gpt.training.callbacks import Callback, CallbackGroup, CheckpointEvent, EvaluationEvent, StepEvent, as_callbacks
from training.sessions import rows, same, start_session, weights

HOOKS = pytest.mark.parametrize("hook", ["on_step", "on_evaluation", "on_checkpoint"])


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_step(self, event: StepEvent) -> None:
        self.events.append(("step", event.step, event.loss, event.learning_rate, event.gradient_norm))

    def on_evaluation(self, event: EvaluationEvent) -> None:
        self.events.append(("evaluation", event.step, event.loss, event.bits_per_char, event.sample))

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.events.append(("checkpoint", event.step, event.folder, event.is_best))


def test_callbacks_see_what_the_metrics_and_the_folder_hold_and_log_beside_it(tmp_path: Path) -> None:
    recorder, lengths = Recorder(), list[int]()
    logs = as_callbacks([lambda event: event.log("mine/double", 2 * event.step)])
    prints = as_callbacks([lambda event: lengths.append(len(repr(event)))])
    trainer = start_session(tmp_path, callbacks=[recorder, *logs, *prints])
    trainer.run()
    lines = map(json.loads, trainer.run_folder.metrics.read_text(encoding="utf-8").splitlines())
    keys = {
        "step": ("train/loss", "train/learning_rate", "train/grad_norm"),
        "evaluation": ("val/loss", "val/bits_per_char"),
    }
    expected = [
        (kind, line["step"], *(line[key] for key in names))
        for line in lines
        for kind, names in keys.items()
        if names[0] in line
    ]
    seen = [event[:5] if event[0] == "step" else event[:4] for event in recorder.events if event[0] != "checkpoint"]
    assert sorted(seen) == sorted(expected)
    assert [event[1] for event in seen if event[0] == "step"] == list(range(1, 7))
    samples = [event[4] for event in recorder.events if event[0] == "evaluation"]
    assert samples[-1] + "\n" == (trainer.run_folder.samples / "step-000006.txt").read_text(encoding="utf-8")
    saved = [event for event in recorder.events if event[0] == "checkpoint"]
    assert [event[1] for event in saved] == [3, 6]
    assert [event[2] for event in saved if event[3]][-1] == trainer.run_folder.pointed("best")
    assert max(lengths) < 500
    assert rows(tmp_path, "mine/double") == {step: 2 * step for step in range(1, 7)}


@pytest.mark.parametrize(("name", "value"), [("step", 1), ("train/loss", 1), ("", 1), (3, 1), ("x", "y"), ("x", None)])
def test_a_name_or_value_that_cannot_be_logged_is_refused(name: Any, value: Any) -> None:
    event = EvaluationEvent(None, 1, 1.0, 1.0, "")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^log: "):
        event.log(name, value)


@HOOKS
def test_stop_ends_the_run_evaluated_and_saved(tmp_path: Path, hook: str) -> None:
    end = 2 if hook == "on_step" else 3
    callback = Callback()
    setattr(callback, hook, lambda event: event.step == end and event.stop())
    trainer = start_session(tmp_path, callbacks=[callback])
    state = trainer.run()
    assert state.step == state.evaluated_step == end
    last = trainer.run_folder.pointed("last")
    assert last is not None
    assert read_checkpoint(last).state["step"] == end


@HOOKS
def test_an_error_of_a_callback_is_raised_after_the_run_was_saved(tmp_path: Path, hook: str) -> None:
    """The run then continues to the same weights as one without an interruption."""
    error = KeyboardInterrupt("mine") if hook == "on_step" else ZeroDivisionError("mine")

    def fail(event: Any) -> None:
        if event.step == 3:
            raise error

    callback, recorder = Callback(), Recorder()
    setattr(callback, hook, fail)
    trainer = start_session(tmp_path, callbacks=[callback, recorder])
    with pytest.raises(type(error)) as caught:
        trainer.run()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert recorder.events[-1][1] <= 3
    resumed, whole = start_session(tmp_path, resume="auto"), start_session(tmp_path, "run.name=whole")
    assert resumed.state.step == 3
    resumed.run()
    whole.run()
    assert same(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("given", [[Recorder], [5], [None], Recorder(), print])
def test_what_is_no_callback_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^callbacks[^\n]*expected a"):
        as_callbacks(given)


class OtherRank(World):
    """Rank 1 of two; rank 0 says `said`."""

    said = 1

    def __init__(self) -> None:
        super().__init__(Launch(rank=1, size=2))

    def all_reduce_max(self, value: int) -> int:
        return max(value, self.said)


def test_another_rank_calls_nothing_and_ends_with_rank_0() -> None:
    recorder, world = Recorder(), OtherRank()
    group = CallbackGroup([recorder], world)
    group.call(EvaluationEvent(None, 1, 1.0, 1.0, ""))  # type: ignore[arg-type]
    group.agree()
    assert (group.stopped, group.failed, recorder.events) == (True, False, [])
    world.said = 2
    with pytest.raises(PeerError):
        group.agree()
