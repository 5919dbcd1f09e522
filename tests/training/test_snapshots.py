"""Snapshots of a training: when they are written, what they may cost, and that a run is the same without them."""

import errno
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import RunFolder, step_files
from gpt.config import TrainConfig
from gpt.generation.request import TextChunk
from gpt.inspection.views.snapshots import read_snapshot, take_snapshot
from gpt.training import snapshots
from gpt.training.callbacks import Callback, StepEvent
from gpt.training.snapshots import Snapshots
from training.sessions import Start, rows, same, weights

TAKEN = "run.snapshots=true"


def steps_of(run: RunFolder) -> list[int]:
    return list(step_files(run.snapshots))


def test_a_run_with_snapshots_is_the_same_run(tmp_path: Path, start: Start) -> None:
    with_them = start(tmp_path / "with", "model.dropout=0.1", TAKEN)
    with_them.run()
    without = start(tmp_path / "without", "model.dropout=0.1", "run.snapshots=false")
    without.run()
    assert same(weights(with_them.model), weights(without.model))
    for name in ("train/loss", "val/loss"):
        assert rows(tmp_path / "with", name) == rows(tmp_path / "without", name)
    assert {0, 1, 3, 6} <= set(steps_of(with_them.run_folder))  # 1 is an early one, with a sample
    shown = read_snapshot(with_them.run_folder.snapshot(6))
    assert torch.equal(shown.embedding, with_them.model.wte.weight.detach().half().float())
    assert shown.attention.shape == (1, 2, 16, 16)
    assert not without.run_folder.snapshots.exists()


def test_a_resumed_run_drops_what_was_kept_after_its_step(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, TAKEN)
    trainer.run()
    run, checkpoints = trainer.run_folder, trainer.run_folder.path / "checkpoints"
    (run.snapshots / ".step-000006.safetensors.abcdefgh.tmp").touch()  # of a process that was killed
    again = start(tmp_path, resume=str(checkpoints / "step-000003"))
    assert (steps_of(run)[-1], list(step_files(run.samples))[-1]) == (3, 3)
    assert not list(run.snapshots.glob(".*"))
    again.run()
    assert (steps_of(run)[-1], list(step_files(run.samples))[-1]) == (3, 6)


@pytest.mark.parametrize("fails_at", [1, 3])
def test_what_cannot_be_taken_ends_the_snapshots_and_not_the_run(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    lines: list[str] = []
    calls = 0

    def take(*args: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise RuntimeError("CUDA out of memory\nof much")
        return take_snapshot(*args)

    monkeypatch.setattr(snapshots, "take_snapshot", take)
    trainer = start(tmp_path, TAKEN, report=lines.append)
    assert trainer.run().step == 6
    assert len(steps_of(trainer.run_folder)) == fails_at - 1 == calls - 1
    (line,) = [line for line in lines if "snapshots" in line]
    assert line.endswith("CUDA out of memory; training continues")


def test_what_cannot_be_sampled_ends_the_snapshots_and_not_the_run(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "TextBatch", lambda *_: 1 / 0)
    lines: list[str] = []
    trainer = start(tmp_path, TAKEN, report=lines.append)
    assert trainer.run().step == 6
    assert steps_of(trainer.run_folder) == [0]
    assert sum("no snapshots from step 1 on: division by zero" in line for line in lines) == 1


def test_what_cannot_be_written_does_not_end_a_run(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(snapshots, "write_atomic", fail)
    lines: list[str] = []
    trainer = start(tmp_path, TAKEN, report=lines.append)
    assert trainer.run().step == 6
    assert steps_of(trainer.run_folder) == []
    assert sum("Snapshots cannot write" in line for line in lines) == 1


class StopAt(Callback):
    """Ends a run after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, event: StepEvent) -> None:
        if event.step == self._step:
            event.stop()


def test_a_run_that_ends_early_has_a_last_snapshot(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, "train.max_steps=100", TAKEN, callbacks=[StopAt(5)])
    assert trainer.run().step == 5
    assert steps_of(trainer.run_folder)[-1] == 5


@dataclass
class Watched:
    """Runs `Snapshots` for so many steps of a second each; `taken` has the samples by step."""

    run: RunFolder
    cost: float
    now: float = 0
    step: int = 0
    taken: dict[int, str] = field(default_factory=dict)

    def take(self, sample: str) -> bytes:
        self.now += self.cost
        self.taken[self.step] = sample
        return b""

    def write_lines(self) -> Generator[dict[int, TextChunk], None, None]:
        for text in "a\ncdefghijk":
            self.now += 0.5
            yield {row: TextChunk(row, text, None, None) for row in (0, 1)}

    def train(self, monkeypatch: pytest.MonkeyPatch, train: TrainConfig) -> dict[int, str]:
        monkeypatch.setattr(snapshots.time, "perf_counter", lambda: self.now)
        monitor = Snapshots(self.run, train, self.take, self.write_lines, pytest.fail)
        self.run.path.mkdir()
        monitor.start(0)
        for step in range(1, train.max_steps + 1):
            self.step = step
            is_logged = step % train.log_interval == 0
            self.now += train.log_interval if is_logged else 0  # until then a device has only been told what to do
            monitor.progress(step, 0.0 if is_logged else None)
        return self.taken


@pytest.mark.parametrize("log_interval", [1, 5])
def test_early_snapshots_and_their_samples_take_their_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_interval: int
) -> None:
    watched = Watched(RunFolder(tmp_path / "run"), cost=1.2)
    taken = watched.train(monkeypatch, TrainConfig(max_steps=1000, eval_interval=15, log_interval=log_interval))
    sample = "a⏎c\na⏎c"  # until 7 / 6 s are over
    assert {at: taken[at] for at in taken if at % 15} == {10: sample, 20: sample, 40: sample, 1000: ""}


def test_evaluations_have_a_snapshot_where_they_are_few_and_it_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Watched(RunFolder(tmp_path / "many"), cost=0.01).train(
        monkeypatch, TrainConfig(max_steps=1000, eval_interval=5)
    )
    early = {10, 20, 40, 80, 160, 320}
    assert many.keys() == {*range(0, 1001, 25), *early}
    assert {many[at] for at in early} == {""}  # their evaluations have one
    dear = Watched(RunFolder(tmp_path / "dear"), cost=5).train(
        monkeypatch, TrainConfig(max_steps=2000, eval_interval=100)
    )
    assert dear.keys() == {0, 20, 40, 100, 500, 1000, 1500, 2000}
