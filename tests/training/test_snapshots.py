"""Snapshots of a training: when they are written, and that a run is the same without them."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import RunFolder, step_files
from gpt.inspection.views.snapshots import read_snapshot
from gpt.training import snapshots
from gpt.training.callbacks import Callback, StepEvent
from gpt.training.snapshots import Snapshots, take_snapshot
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
    (run.snapshots / ".step-000006.safetensors.abcdefgh.tmp").mkdir()  # of a process that was killed
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


def test_many_evaluations_share_forty_snapshots_and_early_ones_have_samples(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(tmp_path, "train.max_steps=990", "train.eval_interval=10")
    taken: dict[int, str] = {}
    monkeypatch.setattr(Snapshots, "_sample", lambda monitor: "some lines")
    monkeypatch.setattr(snapshots, "take_snapshot", lambda model, tokenizer, idx, sample: sample.encode())
    monkeypatch.setattr(snapshots, "write_atomic", lambda file, content: taken.update({int(file.stem[5:]): content}))
    monitor = Snapshots(trainer.run_folder, trainer.config, trainer.model, trainer.dataset, pytest.fail)
    monitor.start(0)
    for step in range(1, 991):
        monitor.progress(step, None)
    monitor.close()
    early = {10: b"", 20: b"", 40: b"", 79: b"some lines", 158: b"some lines", 317: b"some lines"}
    assert taken == dict.fromkeys(range(0, 991, 30), b"") | early  # evaluations have samples of their own
