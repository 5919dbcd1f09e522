"""What shows and keeps the metrics of a run: files, TensorBoard, the terminal; its speed."""

import errno
import io
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call, create_autospec

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt.checkpoint import RunFolder
from gpt.config import Config, ModelConfig
from gpt.config.sections import TrainConfig
from gpt.model.flops import training_flops
from gpt.system.device import Compute
from gpt.training import monitor
from gpt.training.monitor import Console, Monitor, MonitorGroup, RunFiles, SpeedMeter, TensorBoard

CONFIG = Config.model_validate({"model": {"n_layer": 3}, "optim": {"learning_rate": 0.25}})
LINES = [b'{"step": %d, "train/loss": 0.1}\n' % step for step in range(1, 5)]
EVALUATION = b'{"step": 3, "val/loss": 1e-09}\n'


@pytest.mark.parametrize(
    ("found", "step", "evaluated", "kept"),
    [
        (LINES, 2, True, LINES[:2]),
        (LINES, 9, True, LINES),
        (LINES, 0, True, []),
        ([*LINES[:3], EVALUATION], 3, True, [*LINES[:3], EVALUATION]),
        # a process was killed between recording and saving it: it will be recorded again
        ([*LINES[:3], EVALUATION], 3, False, LINES[:3]),
        *(([*LINES[:3], LINES[3][:-cut]], 4, True, LINES[:3]) for cut in (1, 2, 25)),
        *(
            ([LINES[0], damaged, *LINES[1:]], 9, True, LINES)
            for damaged in (b"\0\0\0\n", b"\xff\n", b"[]\n", b"{}\n", b'{"step": null}\n', b"\n")
        ),
    ],
)
def test_resume_keeps_the_whole_lines_up_to_its_step(
    tmp_path: Path, found: list[bytes], step: int, evaluated: bool, kept: list[bytes]
) -> None:
    path = tmp_path / "metrics.jsonl"
    files = RunFiles(RunFolder(tmp_path))
    path.write_bytes(b"".join(found))
    files.start(step, evaluated)
    files.scalars(9, {"train/loss": 0.1, "train/grad_norm": 1e-9})
    assert (
        path.read_bytes()
        == b"".join(kept) + b'{"step": 9, "train/loss": 0.1, "train/grad_norm": 1e-09}\n'
    )


@pytest.mark.parametrize("resume_step", [0, 3, 6])
def test_resumed_events_are_without_the_points_after_its_step(
    tmp_path: Path, resume_step: int
) -> None:
    """Also where it resumes from a checkpoint of step 0."""
    for first, steps, value in ((0, range(7), 1.0), (resume_step, range(resume_step + 1, 9), 2.0)):
        for path in tmp_path.glob(
            "events*"
        ):  # files are read by name, which begins with the second
            path.rename(path.with_name(path.name.replace("tfevents.1", "tfevents.0", 1)))
        board = TensorBoard(tmp_path, CONFIG)
        board.start(first)
        for step in steps:
            board.scalars(step, {"speed/seconds": 1.0, "train/loss": value, "val/loss": 2.0})
        board.sample(first, "KING:\n  <b>Who?</b>")
        board.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    # The page shows the names in this order.
    assert sorted(events.Tags()["scalars"]) == ["loss/train", "loss/validation", "speed/seconds"]
    points = [(event.step, event.value) for event in events.Scalars("loss/train")]
    assert points == [(step, 1.0 if step <= resume_step else 2.0) for step in range(9)]
    texts = [
        events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0]
        for name in ("sample", "config")
    ]
    assert texts[0] == b"    KING:\n      <b>Who?</b>"
    assert b"    learning_rate: 0.25" in texts[1]


TRAINED = {
    "train/loss": 2.5,
    "train/learning_rate": 3e-4,
    "train/grad_norm": 0.75,
    "speed/tokens_per_second": 12345.6,
}


def test_pipe_gets_a_line_for_each_report_and_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 20 of 80 steps in 40 seconds, 60 steps take 120 more.

    Steps before the resume do not count.
    """
    clock = iter([1000.0, 1040.0])
    monkeypatch.setattr("gpt.training.monitor.time", SimpleNamespace(monotonic=lambda: next(clock)))
    pipe = io.StringIO()
    console = Console(max_steps=180, file=pipe)
    console.start(100)
    console.progress(120, 2.5)
    console.scalars(120, TRAINED)
    console.scalars(120, {"val/loss": 2.25, "val/bits_per_char": 3.2461})
    console.sample(120, "first\n\nthird")
    console.close()
    assert pipe.getvalue().splitlines() == [
        "step    120  loss 2.5000 nats  lr 3.00e-04  grad norm 0.75  12,346 tokens/s  left 02:00",
        "step    120  validation loss 2.2500 nats (3.2461 bits per character)",
        "step    120  the model writes:",
        "  | first",
        "  | ",
        "  | third",
    ]


def failing(error: Exception | None = None) -> Mock:
    """A monitor that notes its calls, and raises an error in each."""
    monitor: Mock = create_autospec(Monitor, instance=True)
    for name in ("start", "scalars", "sample", "progress", "close"):
        getattr(monitor, name).side_effect = error
    return monitor


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_monitors_hear_everything_although_one_cannot_write(number: int) -> None:
    lines: list[str] = []
    full = failing(OSError(number, "it is full"))
    whole = failing()
    group = MonitorGroup([full, whole], lines.append)
    group.scalars(1, {})
    group.sample(1, "")
    group.progress(1, None)
    group.close()
    expected = [call.scalars(1, {}), call.sample(1, ""), call.progress(1, None), call.close()]
    assert full.method_calls == whole.method_calls == expected
    assert lines == ["warning: NonCallableMagicMock cannot write: it is full; training continues"]


def test_speed_counts_steps_since_the_last_reading_or_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1000 tokens a step of two processes; the machine computes four steps a second; 50 s into its
    run.
    """
    model = ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=16, vocab_size=5)
    config = Config(model=model, train=TrainConfig(batch_size=125, grad_accum_steps=1))
    whole = training_flops(model, 125, 16)
    short = training_flops(model, 250, 8)
    monkeypatch.setattr(monitor, "measure_matmul_rate", lambda device, dtype: 2.0 * whole)
    monkeypatch.setattr(monitor, "peak_memory_bytes", lambda device: 7)
    clock = SimpleNamespace(now=100.0)
    meter = SpeedMeter(config, Compute(torch.device("cpu"), torch.float32), 2, lambda: clock.now)
    meter.start(seconds_before=50.0)
    assert meter.total_seconds == 50.0
    for lengths, seconds, tokens, mfu in (
        ([16] * 4, 2, 4000.0, 0.5),
        ([16], 4, 500.0, 0.0625),
        ([], 0, 0.0, 0.0),
        ([16, 8], 1, 4000.0, (whole + short) / (4 * whole)),
    ):
        if 8 in lengths:
            meter.count_step(16)
            clock.now += 1000
            meter.restart()
        for length in lengths:
            meter.count_step(length)
        clock.now += seconds
        assert meter.read() == {
            "speed/tokens_per_second": tokens,
            "speed/mfu": mfu,
            "speed/memory_bytes": 7,
            "speed/seconds": pytest.approx(clock.now - 50.0),
        }
    meter.count_step(16)
    assert meter.read()["speed/tokens_per_second"] > 0  # also where no time has passed
