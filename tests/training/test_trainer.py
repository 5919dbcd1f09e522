"""The training loop: what is done when, what stops it, what a run keeps when something fails."""

import errno
import math
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec, patch

import pytest
import torch

import gpt
from gpt.checkpoint import find_checkpoint, read_checkpoint
from gpt.system.distributed import World
from gpt.system.environment import Launch
from gpt.system.errors import CheckpointError, ConfigError, GPTError, NonFiniteError, PeerError
from gpt.system.files import write_atomic
from gpt.system.signals import WATCHED
from gpt.training.callbacks import (
    Callback,
    CallbackGroup,
    CloseEvent,
    EndEvent,
    EvaluationEvent,
    GradientEvent,
    StartEvent,
    StepEvent,
    as_callbacks,
)
from gpt.training.loss import Evaluation
from gpt.training.monitor import Monitor, MonitorGroup
from gpt.training.signals import Interrupted, SignalWatch
from gpt.training.validation import Validation
from tiny import CORPUS
from training.sessions import rows, same, saved_steps, stopped_after, weights
from training.sessions import start_session as start

THREE = "train.max_steps=3"


def test_accumulation_sees_the_windows_of_the_large_batch(tmp_path: Path) -> None:
    start(tmp_path / "one", "train.batch_size=8").run()
    start(tmp_path / "other", "train.batch_size=2", "train.grad_accum_steps=4").run()
    for name in ("train/loss", "train/grad_norm", "val/loss"):
        assert rows(tmp_path / "one", name) == pytest.approx(
            rows(tmp_path / "other", name), rel=1e-4
        )


def test_evaluations_logs_and_checkpoints_come_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    trainer = start(
        tmp_path, "train.max_steps=7", "train.log_interval=2", "run.dir=~/runs", "data.dir=~/data"
    )
    assert trainer.run().step == 7
    assert list(rows(tmp_path, "train/loss")) == [2, 4, 6, 7]
    assert list(rows(tmp_path, "val/loss")) == saved_steps(trainer) == [3, 6, 7]
    samples = sorted(path.name for path in trainer.run_folder.samples.iterdir())
    assert samples == [f"step-{step:06d}.txt" for step in (3, 6, 7)]
    assert (tmp_path / "data" / "tokens").is_dir()


def test_run_is_locked_from_its_start_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GPTError):
        start(tmp_path, "model.block_size=100000")
    trainer = start(tmp_path, THREE)
    with pytest.raises(CheckpointError, match="another process is training"):
        start(tmp_path, THREE, "run.seed=7", resume="auto")
    start(tmp_path, THREE, "run.name=other").run()
    trainer.run()
    again = start(tmp_path, THREE, resume="auto")
    monkeypatch.setattr(again, "_loop", lambda poll: 1 / 0)
    with pytest.raises(ZeroDivisionError) as kept:  # with its traceback
        again.run()
    assert kept.tb
    assert not again.run_folder.is_being_trained()
    assert not list((tmp_path / "runs").glob(".*"))


def test_run_that_is_refused_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    with (
        patch("gpt.system.device.keep_freed_memory") as keep_freed_memory,
        pytest.raises(GPTError, match="fewer than block_size"),
    ):
        start(tmp_path, f"run.threads={threads + 1}", "model.block_size=100000")
    assert torch.get_num_threads() == threads
    keep_freed_memory.assert_not_called()


def test_full_disk_costs_checkpoints_but_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full at steps 3, 6 and 12; the loss of step 3 is the lowest."""

    def sync_file(path: Path) -> None:
        if 2 <= trainer.state.step <= 7 or trainer.state.step > 10:
            raise OSError(errno.ENOSPC, "No space left on device")

    losses = iter([1.0, 1.8, 1.5, 2.0])
    lines: list[str] = []
    monkeypatch.setattr(
        "gpt.training.train.evaluate", lambda *arguments: Evaluation(next(losses), 1)
    )
    trainer = start(tmp_path, "train.max_steps=12", report=lines.append)
    monkeypatch.setattr("gpt.checkpoint.folder.sync_file", sync_file)
    with pytest.raises(
        CheckpointError, match=r"cannot write .*step-000012: No space left on device"
    ):
        trainer.run()
    assert saved_steps(trainer) == [9]
    assert (trainer.state.step, trainer.state.best_step, trainer.state.best_val_loss) == (
        12,
        9,
        1.5,
    )
    best = find_checkpoint(trainer.run_folder.path, tmp_path)
    assert (best.name, read_checkpoint(best).state["val_loss"]) == ("step-000009", 1.5)
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert "step-000003: No space left on device; training continues" in warnings[0]


@pytest.mark.parametrize("sample_tokens", [0, 8])
def test_validation_loss_that_is_not_finite_saves_nothing(
    tmp_path: Path, sample_tokens: int
) -> None:
    """It is said before a sample from such weights could fail for the same reason."""
    trainer = start(tmp_path, f"train.sample_tokens={sample_tokens}")

    def spoil(module: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits if module.training or trainer.state.step < 3 else logits * math.nan

    trainer.model.register_forward_hook(spoil)
    with pytest.raises(
        NonFiniteError, match="the validation loss is not finite at step 3; it is not recorded"
    ):
        trainer.run()
    assert saved_steps(trainer) == list(rows(tmp_path, "val/loss")) == []


@pytest.mark.parametrize("part", ["loss", "sample"])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_steps_are_not_lost_if_the_last_evaluation_fails(
    tmp_path: Path, part: str, is_stopped: bool
) -> None:
    """As for want of memory; or the process is killed in it."""
    end = 5 if is_stopped else 6
    stop = as_callbacks([lambda event: event.step == end and event.stop()]) if is_stopped else []
    trainer = start(tmp_path, callbacks=stop)
    whole = getattr(Validation, part)

    def fail(validation: Validation, *arguments: Any) -> Any:
        if trainer.state.step == end:
            raise MemoryError
        return whole(validation, *arguments)

    with patch.object(Validation, part, fail), pytest.raises(MemoryError):
        trainer.run()
    assert saved_steps(trainer) == [3, end]
    resumed = start(tmp_path, resume="auto")
    assert (resumed.state.step, resumed.state.evaluated_step, resumed.state.best_step) == (
        end,
        3,
        3,
    )
    resumed.run()
    unharmed = start(tmp_path, "run.name=unharmed")
    unharmed.run()
    assert same(weights(unharmed.model), weights(resumed.model))
    assert rows(tmp_path, "val/loss").keys() == {3, 6}


@pytest.mark.parametrize("changes", range(1, 4))
def test_run_killed_before_its_last_pointers_gets_them_on_resume(
    tmp_path: Path, changes: int
) -> None:
    """The last step is saved twice, and a pointer to its folder may be that of the first time."""
    whole = start(tmp_path / "whole")
    trainer = start(tmp_path / "killed")
    whole.run()
    writes_at_step_6 = 0

    def write_or_die(path: Path, content: bytes) -> None:
        nonlocal writes_at_step_6
        is_pointer = path.name in ("best.json", "last.json")
        if is_pointer and trainer.state.step == 6:
            writes_at_step_6 += 1
            if writes_at_step_6 == changes:
                raise KeyboardInterrupt
        write_atomic(path, content)

    with (
        patch("gpt.checkpoint.runs.write_atomic", write_or_die),
        pytest.raises(KeyboardInterrupt),
    ):
        trainer.run()
    start(tmp_path / "killed", resume="auto").run()
    for name in ("best.json", "last.json"):
        assert (trainer.run_folder.path / name).read_bytes() == (
            whole.run_folder.path / name
        ).read_bytes()


def stop_after_five(event: StepEvent) -> None:
    if event.step == 5:
        event.stop()


@pytest.mark.parametrize("stops", ["signal", "callback"])
def test_stop_after_an_unread_bad_step_does_not_save_it(tmp_path: Path, stops: str) -> None:
    """As on a GPU, where the bad step would only be noticed at the next log line."""
    callbacks = as_callbacks([stop_after_five] if stops == "callback" else [])
    options = ("train.log_interval=99", "train.max_steps=99", "train.eval_interval=99")
    trainer = start(tmp_path, *options, callbacks=callbacks)
    trainer.stepper.guard.checks_each_step = False
    trainer.model.ln_f.weight.register_hook(
        lambda gradient: gradient * (math.nan if trainer.state.step == 2 else 1)
    )
    signal_or_none = stopped_after(5) if stops == "signal" else nullcontext()
    with signal_or_none, pytest.raises(NonFiniteError, match="at step 2;"):
        trainer.run()
    assert saved_steps(trainer) == []


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """The loss is finite although one is not: no text has the last id of this vocabulary."""
    trainer = start(tmp_path, "model.vocab_size=99", "model.tie_weights=false")
    with torch.no_grad():
        trainer.model.wte.weight[-1, 0] = math.inf
    with pytest.raises(
        NonFiniteError, match=r"the weights wte\.weight are not finite at step 3; nothing was saved"
    ):
        trainer.run()
    assert trainer.run_folder.checkpoints() == []


SIGNALS = pytest.mark.parametrize("number", WATCHED)


@pytest.fixture
def former() -> Iterator[list[int]]:
    """Signals that reached the handlers which were there before."""
    received: list[int] = []
    handlers = {n: signal.signal(n, lambda number, frame: received.append(number)) for n in WATCHED}
    yield received
    for number, handler in handlers.items():
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in WATCHED]


@pytest.mark.parametrize("size", [4, 1], ids=["evaluating", "sampling"])
def test_signal_while_evaluating_or_sampling_is_obeyed_at_once(tmp_path: Path, size: int) -> None:
    trainer = start(tmp_path)
    monitor = create_autospec(Monitor, instance=True)
    trainer.monitor = MonitorGroup([monitor], print)
    sizes: list[int] = []

    def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if trainer.state.step == 3:
            sizes.append(len(inputs[0]))
            if sizes.count(size) == 1:
                signal.raise_signal(signal.SIGTERM)

    trainer.model.register_forward_pre_hook(hook)
    with pytest.raises(Interrupted):
        trainer.run()
    assert sizes.index(size) == len(sizes) - 1
    assert trainer.state.evaluated_step == -1
    assert saved_steps(trainer) == [3]
    monitor.close.assert_called_once()


@SIGNALS
def test_first_signal_is_raised_once_and_echoes_are_not(former: list[int], number: int) -> None:
    lines: list[str] = []
    before = handlers()
    with suppress(ZeroDivisionError), SignalWatch(lines.append) as watch:
        watch.check()
        for again in (number, number, *WATCHED):
            os.kill(os.getpid(), again)
        with pytest.raises(Interrupted, match=signal.Signals(number).name) as stopped:
            watch.check()
        os.kill(os.getpid(), number)
        watch.check()
        raise ZeroDivisionError
    assert stopped.value.exit_code == 128 + number
    assert lines == [
        f"{signal.Signals(number).name}: saving after this step; send it again to stop at once"
    ]
    assert former == []
    assert handlers() == before
    os.kill(os.getpid(), number)
    assert former == [number]


@SIGNALS
def test_later_signal_goes_where_it_would_have_gone(
    former: list[int], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Also where the first one came while a line was printed, so that none can be printed."""
    monkeypatch.setattr("gpt.system.signals.ECHO_SECONDS", 0)
    with SignalWatch(Mock(side_effect=RuntimeError("reentrant call inside <_io.BufferedWriter>"))):
        os.kill(os.getpid(), number)
        assert former == []
        for again in WATCHED:
            os.kill(os.getpid(), again)
        assert former == list(WATCHED)


ALL_HOOKS = (
    "on_start",
    "on_step",
    "on_gradients",
    "on_evaluation",
    "on_checkpoint",
    "on_end",
    "on_close",
)
HOOKS = pytest.mark.parametrize("hook", ["on_step", "on_evaluation", "on_checkpoint"])


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: dict[str, list[Any]] = {
            "step": [],
            "evaluation": [],
            "checkpoint": [],
            "end": [],
        }

    def on_step(self, event: StepEvent) -> None:
        self.events["step"].append(
            (event.step, event.loss, event.learning_rate, event.gradient_norm)
        )

    def on_evaluation(self, event: EvaluationEvent) -> None:
        self.events["evaluation"].append(
            (event.step, event.loss, event.bits_per_char, event.sample)
        )

    def on_checkpoint(self, event: Any) -> None:
        self.events["checkpoint"].append((event.step, event.folder, event.is_best))

    def on_end(self, event: EndEvent) -> None:
        event.log("mine/end", event.step)
        last = event.trainer.run_folder.pointed("last")
        self.events["end"].append((event.step, last.name))


def test_callbacks_see_the_metrics_and_log_beside_them(tmp_path: Path) -> None:
    recorder = Recorder()
    lengths: list[int] = []
    logs = as_callbacks([lambda event: event.log("mine/double", 2 * event.step)])
    prints = as_callbacks([lambda event: lengths.append(len(repr(event)))])
    trainer = start(tmp_path, callbacks=[recorder, *logs, *prints])
    trainer.run()
    steps, evaluations, saved, ended = recorder.events.values()
    assert ended == [(6, "step-000006")]
    assert rows(tmp_path, "mine/end") == {6: 6}
    names = ("train/loss", "train/learning_rate", "train/grad_norm")
    assert steps == [
        (step, *(rows(tmp_path, name)[step] for name in names)) for step in range(1, 7)
    ]
    for step, loss, bits, sample in evaluations:
        assert (loss, bits) == (
            rows(tmp_path, "val/loss")[step],
            rows(tmp_path, "val/bits_per_char")[step],
        )
        assert (trainer.run_folder.samples / f"step-{step:06d}.txt").read_text(
            encoding="utf-8"
        ) == sample + "\n"
    assert [event[0] for event in saved] == [event[0] for event in evaluations] == [3, 6]
    assert [folder for _, folder, is_best in saved if is_best][-1] == trainer.run_folder.pointed(
        "best"
    )
    assert max(lengths) < 500
    assert rows(tmp_path, "mine/double") == {step: 2 * step for step in range(1, 7)}


class Resource(Callback):
    """A callback that holds something while a training runs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_start(self, event: StartEvent) -> None:
        self.calls.append(("start", event.step))

    def on_close(self, event: CloseEvent) -> None:
        self.calls.append(("close", event.step))


def test_callback_is_started_and_closed_whatever_ends_a_run(tmp_path: Path) -> None:
    """Also where another callback fails."""
    stopped, resumed, failed = (Resource() for _ in range(3))
    with stopped_after(2), pytest.raises(Interrupted):
        start(tmp_path, callbacks=[stopped]).run()
    start(tmp_path, callbacks=[resumed], resume="auto").run()
    failing = Callback()
    failing.on_step = Mock(side_effect=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        start(tmp_path / "failed", callbacks=[failing, failed]).run()
    assert stopped.calls == [("start", 0), ("close", 2)]
    assert resumed.calls == [("start", 2), ("close", 6)]
    assert failed.calls == [("start", 0), ("close", 1)]


@HOOKS
def test_stop_ends_the_run_evaluated_and_saved(tmp_path: Path, hook: str) -> None:
    end = 2 if hook == "on_step" else 3
    callback = Callback()
    recorder = Recorder()
    setattr(callback, hook, lambda event: event.step == end and event.stop())
    trainer = start(tmp_path, callbacks=[callback, recorder])
    state = trainer.run()
    assert [event[0] for event in recorder.events["end"]] == [end]
    assert state.step == state.evaluated_step == end
    assert (
        read_checkpoint(find_checkpoint(trainer.run_folder.path, tmp_path, prefer="last")).state[
            "step"
        ]
        == end
    )


@HOOKS
def test_error_of_a_callback_is_raised_after_the_run_was_saved(tmp_path: Path, hook: str) -> None:
    """The run then continues to the same weights as one without an interruption."""
    error = KeyboardInterrupt("mine") if hook == "on_step" else ZeroDivisionError("mine")

    def fail(event: Any) -> None:
        if event.step == 3:
            raise error

    callback = Callback()
    recorder = Recorder()
    setattr(callback, hook, fail)
    trainer = start(tmp_path, callbacks=[callback, recorder])
    with pytest.raises(type(error)) as caught:
        trainer.run()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert recorder.events["end"] == []
    assert max(event[0] for events in recorder.events.values() for event in events) <= 3
    resumed = start(tmp_path, resume="auto")
    whole = start(tmp_path, "run.name=whole")
    assert resumed.state.step == 3
    resumed.run()
    whole.run()
    assert same(weights(whole.model), weights(resumed.model))


class Noise(Callback):
    def on_gradients(self, event: GradientEvent) -> None:
        for parameter in event.trainer.model.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.01 * torch.randn(parameter.shape, generator=event.generator)


def test_gradient_noise_is_equal_in_all_ranks_and_after_a_resume(tmp_path: Path) -> None:
    plain, whole = (start(tmp_path / str(len(given)), callbacks=given) for given in ([], [Noise()]))
    plain.run()
    whole.run()
    with stopped_after(4), pytest.raises(Interrupted):
        start(tmp_path / "parts", callbacks=[Noise()]).run()
    resumed = start(tmp_path / "parts", resume="auto", callbacks=[Noise()])
    resumed.run()
    assert same(weights(whole.model), weights(resumed.model))
    assert not same(weights(whole.model), weights(plain.model))
    seen: list[int] = []
    with patch.object(Noise, "on_gradients", lambda self, event: seen.append(event.step)):
        CallbackGroup([Noise()], World(Launch(rank=1, size=2))).call(
            GradientEvent(whole, 6, torch.Generator())
        )
    assert seen == [6]


@pytest.mark.parametrize("given", [[Recorder], [5], [None], Recorder(), print])
def test_what_is_no_callback_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^callbacks[^\n]*expected a"):
        as_callbacks(given)


def test_error_at_the_end_is_raised_too(tmp_path: Path) -> None:
    callback = Callback()
    callback.on_end = Mock(side_effect=ZeroDivisionError("mine"))
    trainer = start(tmp_path, callbacks=[callback])
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert (
        read_checkpoint(find_checkpoint(trainer.run_folder.path, tmp_path, prefer="last")).state[
            "step"
        ]
        == 6
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("on_evaluate", "; did you mean on_evaluation?"),
        ("on_steps", "; did you mean on_step?"),
        ("on_train_end", f"; the hooks are {', '.join(ALL_HOOKS)}"),
    ],
)
def test_hook_that_there_is_not_is_refused(name: str, hint: str) -> None:
    refused = f"^callbacks: Wrong.{name} would never be called{re.escape(hint)}"
    with pytest.raises(ConfigError, match=refused):
        as_callbacks([type("Wrong", (Callback,), {name: lambda self, event: None})()])
    plain = Callback()
    setattr(plain, name, print)
    with pytest.raises(ConfigError, match=f"^callbacks: Callback.{name} would never be called"):
        as_callbacks([plain])


def test_attributes_and_functions_with_methods_are_no_hooks() -> None:
    on_gpu = type("OnGPU", (Callback,), {"on_gpu": True})()
    function = type(
        "Function", (), {"__call__": lambda self, event: None, "on_message": lambda self: None}
    )()
    assert as_callbacks([on_gpu])[0] is on_gpu
    assert len(as_callbacks([function])) == 1


def test_another_rank_calls_nothing_and_ends_with_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 1  # by rank 0
    monkeypatch.setattr(World, "all_reduce_max", lambda world, value: max(value, said))
    recorder = Recorder()
    group = CallbackGroup([recorder], World(Launch(rank=1, size=2)))
    group.call(EvaluationEvent(None, 1, 1.0, 1.0, ""))  # type: ignore[arg-type]
    group.sync_across_ranks()
    assert (group.stopped, group.failed, recorder.events["evaluation"]) == (True, False, [])
    said = 2
    with pytest.raises(PeerError):
        group.sync_across_ranks()


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def train(folder: Path) -> gpt.Run:
    small = {
        "n_layer": 1,
        "n_head": 2,
        "n_embd": 16,
        "block_size": 16,
        "position": "rope",
        "qk_norm": True,
    }
    return gpt.train(
        text=CORPUS * 30,
        name=None,
        model=small,
        max_steps=4,
        eval_interval=2,
        batch_size=2,
        warmup_steps=1,
        device="cpu",
        compile=False,
        dtype="float32",
        config={},
        sample_tokens=5,
        report=None,
        run={"dir": str(folder)},
    )


@pytest.mark.parametrize(
    "setting", [float64, torch.no_grad, torch.inference_mode], ids=lambda each: each.__name__
)
def test_no_setting_of_torch_changes_a_run(
    setting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for context in (nullcontext, setting):
        with context():
            run = train(tmp_path / context.__name__)
            losses = [row["val/loss"] for row in run.metrics if "val/loss" in row]
            found.append(
                [losses, run.evaluate()["loss"], run.sample("the"), run.model.state_dict()]
            )
            assert not any(
                tensor.is_inference() for tensor in (*run.model.buffers(), *run.model.parameters())
            )
    assert found[0][:3] == found[1][:3]
    torch.testing.assert_close(found[0][3], found[1][3], rtol=0, atol=0)
