"""Snapshots of a training: when they are written, what they may cost, and that a run is the same without them."""

import errno
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.config import TrainConfig
from gpt.errors import InputError
from gpt.generation.request import TextChunk
from gpt.inspection.views.snapshots import read_snapshot, take_snapshot
from gpt.training import snapshots
from gpt.training.setup import Displays
from gpt.training.snapshots import Snapshots, snapshot_file, snapshot_steps
from training.sessions import Start, rows, same, weights

TAKEN = Displays(snapshot=take_snapshot)


def test_a_run_with_snapshots_is_the_same_run(tmp_path: Path, start: Start) -> None:
    options = "model.dropout=0.1", "train.activation_checkpointing=true"
    with_them = start(tmp_path / "with", *options, displays=TAKEN)
    with_them.run()
    without = start(tmp_path / "without", *options, "run.snapshots=false", displays=TAKEN)
    without.run()
    assert same(weights(with_them.model), weights(without.model))
    for name in ("train/loss", "val/loss"):
        assert rows(tmp_path / "with", name) == rows(tmp_path / "without", name)
    folder = with_them.run_folder.snapshots
    assert {0, 3, 6} <= set(snapshot_steps(folder))
    shown = read_snapshot(snapshot_file(folder, 6))
    assert torch.equal(shown.embedding, with_them.model.wte.weight.detach().half().float())
    assert shown.attention.shape == (1, 2, 16, 16)
    assert not without.run_folder.snapshots.exists()


def test_a_resumed_run_drops_those_after_its_step(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, displays=TAKEN)
    trainer.run()
    folder, checkpoints = trainer.run_folder.snapshots, trainer.run_folder.path / "checkpoints"
    (folder / ".step-000006.safetensors.abcdefgh.tmp").touch()  # of a process that was killed
    again = start(tmp_path, "train.eval_interval=10", resume=str(checkpoints / "step-000003"), displays=TAKEN)
    again.monitor.start(3)
    assert snapshot_steps(folder) == [step for step in snapshot_steps(folder) if step <= 3]
    assert not list(folder.glob(".*"))
    again.run()
    assert snapshot_steps(folder)[-1] == 6


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), InputError("cannot be shown")])
def test_what_cannot_be_taken_or_written_does_not_end_a_run(tmp_path: Path, start: Start, error: Exception) -> None:
    lines: list[str] = []

    def fail(*_: object) -> Any:
        raise error

    trainer = start(tmp_path, displays=Displays(snapshot=fail), report=lines.append)
    assert trainer.run().step == 6
    assert snapshot_steps(trainer.run_folder.snapshots) == []
    assert sum("Snapshots cannot write" in line for line in lines) == isinstance(error, OSError)


def test_early_snapshots_and_their_samples_take_their_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, taken = 0.0, dict[int, str]()
    step = 0

    def take(sample: str) -> bytes:
        nonlocal now
        now += 1.2
        taken[step] = sample
        return b""

    def write_lines() -> Generator[dict[int, TextChunk], None, None]:
        nonlocal now
        for text in "a\ncdefghijk":
            now += 0.5
            yield {row: TextChunk(row, text, None, None) for row in (0, 1)}

    monkeypatch.setattr(snapshots.time, "perf_counter", lambda: now)
    monitor = Snapshots(tmp_path / "snapshots", TrainConfig(max_steps=1000, eval_interval=15), take, write_lines)
    monitor.start(0)
    for step in range(1, 1001):
        now += 1
        monitor.progress(step, None)
    sample = "a⏎c\na⏎c"  # until 7 / 6 s are over
    assert {at: taken[at] for at in taken if at % 15} == {10: sample, 20: sample, 40: sample, 1000: ""}
    assert [at for at in taken if at % 15 == 0] == list(range(0, 1001, 30))  # of 67 evaluations every second one
