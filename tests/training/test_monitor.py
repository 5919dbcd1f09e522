import errno
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call, create_autospec

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt.checkpoint import RunFolder
from gpt.config import Config
from gpt.training.monitor import Console, Monitor, MonitorGroup, RunFiles, SpeedMeter, TensorBoard

CONFIG = Config.model_validate({"model": {"n_layer": 3}, "optim": {"learning_rate": 0.25}})

# --- files ---------------------------------------------------------------------------------------

LINES = [b'{"step": %d, "train/loss": 0.1}\n' % step for step in range(1, 5)]
EVALUATION = b'{"step": 3, "val/loss": 1e-09}\n'


def test_every_call_is_a_line_at_once(tmp_path: Path) -> None:
    metrics = RunFiles(RunFolder(tmp_path))
    metrics.scalars(3, {"train/loss": 0.1, "train/grad_norm": 1e-9})
    content = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert content == '{"step": 3, "train/loss": 0.1, "train/grad_norm": 1e-09}\n'


@pytest.mark.parametrize(
    ("found", "step", "evaluated", "kept"),
    [
        (LINES, 2, True, LINES[:2]),
        (LINES, 9, True, LINES),
        (LINES, 0, True, []),
        ([*LINES[:3], EVALUATION], 3, True, [*LINES[:3], EVALUATION]),
        # a process was killed between recording and saving it: it will be recorded again
        ([*LINES[:3], EVALUATION], 3, False, LINES[:3]),
        *(([*LINES[:3], LINES[3][:-cut]], 4, True, LINES[:3]) for cut in (1, 2, 10, 25)),
        *(
            ([LINES[0], damaged, *LINES[1:]], 9, True, LINES)
            for damaged in (b"\0\0\0\n", b"\xff\n", b"[]\n", b"{}\n", b'{"step": null}\n', b"\n")
        ),
    ],
)
def test_a_resume_keeps_the_whole_lines_up_to_its_step_as_they_were(
    tmp_path: Path, found: list[bytes], step: int, evaluated: bool, kept: list[bytes]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(found))
    RunFiles(RunFolder(tmp_path)).start(step, evaluated)
    assert path.read_bytes() == b"".join(kept)


def test_each_sample_is_a_file_of_its_step(tmp_path: Path) -> None:
    samples, folder = RunFiles(RunFolder(tmp_path)), tmp_path / "samples"
    folder.mkdir()
    samples.sample(250, "Zwölf 十二\nlines")
    samples.sample(1_000_000, "")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "step-000250.txt": "Zwölf 十二\nlines\n",
        "step-1000000.txt": "\n",
    }


# --- TensorBoard ---------------------------------------------------------------------------------


def read_events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def points(events: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(name)]


def text_of(events: EventAccumulator, name: str) -> str:
    return events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()


def test_scalars_and_texts_can_be_read_back(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, CONFIG)
    board.start(0)
    for step in (10, 20):
        board.scalars(step, {"train/loss": 1.0 / step, "val/loss": 2.0})
    board.sample(20, "KING:\n  <b>Who?</b>")
    board.close()
    events = read_events(tmp_path)
    assert points(events, "train/loss") == [(10, pytest.approx(0.1)), (20, pytest.approx(0.05))]
    assert text_of(events, "sample") == "    KING:\n      <b>Who?</b>"
    assert "    learning_rate: 0.25" in text_of(events, "config")


@pytest.mark.parametrize("resume_step", [0, 3, 6])
def test_a_resume_hides_the_points_after_its_step_and_no_others(tmp_path: Path, resume_step: int) -> None:
    """Also where it resumes from a checkpoint of step 0."""
    for first, steps, value in ((0, range(7), 1.0), (resume_step, range(resume_step + 1, 9), 2.0)):
        for path in tmp_path.glob("events*"):  # files are read by name, which begins with the second
            path.rename(path.with_name(path.name.replace("tfevents.1", "tfevents.0", 1)))
        board = TensorBoard(tmp_path, CONFIG)
        board.start(first)
        for step in steps:
            board.scalars(step, {"train/loss": value})
        board.close()
    expected = [(step, 1.0 if step <= resume_step else 2.0) for step in range(9)]
    assert points(read_events(tmp_path), "train/loss") == expected


# --- the terminal --------------------------------------------------------------------------------

TRAINED = {"train/loss": 2.5, "train/learning_rate": 3e-4, "train/grad_norm": 0.75, "speed/tokens_per_second": 12345.6}


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_in_a_pipe_there_is_a_line_for_each_report_and_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 20 of 80 steps in 40 seconds, 60 steps take 120 more; steps before the resume do not count."""
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


def test_in_a_terminal_a_bar_counts_from_the_resumed_step_and_shows_the_loss() -> None:
    terminal = Terminal()
    console = Console(max_steps=10, file=terminal)
    console.start(4)
    for step in range(5, 11):
        console.progress(step, 1.5 if step == 10 else None)
        console.scalars(step, TRAINED)
    console.scalars(10, {"val/loss": 2.25, "val/bits_per_char": 3.25})
    console.close()
    shown = terminal.getvalue()
    assert re.search(r"\b4/10\b", shown)
    assert re.search(r"\b10/10\b.*loss=1\.5000 nats", shown)
    assert "validation loss 2.2500 nats" in shown
    assert "lr 3.00e-04" not in shown


# --- several as one ------------------------------------------------------------------------------


def a_monitor(error: Exception | None = None) -> Mock:
    """A monitor that notes its calls, and raises an error in each."""
    monitor: Mock = create_autospec(Monitor, instance=True)
    for name in ("start", "scalars", "sample", "progress", "close"):
        getattr(monitor, name).side_effect = error
    return monitor


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "No space left on device"), (errno.EPIPE, "Broken pipe")]
)
def test_every_monitor_hears_everything_although_one_cannot_write_which_is_said_once(number: int, reason: str) -> None:
    lines: list[str] = []
    full, whole = a_monitor(OSError(number, reason)), a_monitor()
    group = MonitorGroup([full, whole], lines.append)
    group.scalars(1, {})
    group.sample(1, "")
    group.progress(1, None)
    group.close()
    names = [name for name, _, _ in whole.method_calls]
    assert names == ["scalars", "sample", "progress", "close"]
    assert [name for name, _, _ in full.method_calls] == names
    assert whole.method_calls[2] == call.progress(1, None)
    assert lines == [f"warning: NonCallableMagicMock cannot write: {reason}; training continues"]


def test_a_monitor_that_cannot_start_is_left_out() -> None:
    lines: list[str] = []
    full, whole = a_monitor(OSError(errno.EISDIR, "Is a directory")), a_monitor()
    group = MonitorGroup([full, whole], lines.append)
    group.start(0, False)
    group.scalars(1, {})
    assert full.method_calls == [call.start(0, False)]
    assert whole.method_calls == [call.start(0, False), call.scalars(1, {})]
    assert len(lines) == 1


def test_metrics_of_a_folder_that_was_deleted_are_not_lost_in_silence(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "run").mkdir()
    group = MonitorGroup([RunFiles(RunFolder(tmp_path / "run"))], lines.append)
    group.start(0)
    group.scalars(1, {"train/loss": 1.0})
    shutil.rmtree(tmp_path / "run")
    group.scalars(2, {"train/loss": 1.0})
    assert lines == ["warning: RunFiles cannot write: No such file or directory; training continues"]
    (tmp_path / "run").mkdir()
    group.scalars(3, {"train/loss": 1.0})
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_bytes())["step"] == 3


def test_a_mistake_of_ours_ends_the_run() -> None:
    with pytest.raises(ValueError, match="a bug"):
        MonitorGroup([a_monitor(ValueError("a bug"))], pytest.fail).scalars(1, {})


# --- speed ---------------------------------------------------------------------------------------


class Clock:
    """Shows what it was set to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_speed_is_of_the_steps_since_the_last_reading_or_restart_and_seconds_of_the_whole_run() -> None:
    """1000 tokens and 5000 FLOPs a step (4000 in sequences of 8), on a machine of 20,000 FLOP/s, 50 s into its run."""
    clock = Clock()
    meter = SpeedMeter(1000, {16: 5000, 8: 4000}.__getitem__, lambda: 20_000.0, lambda: 7, clock)
    meter.start(seconds_before=50.0)
    assert meter.total_seconds == 50.0
    for steps, seconds, tokens, mfu in ((4, 2, 2000.0, 0.5), (1, 4, 250.0, 0.0625), (0, 0, 0.0, 0.0)):
        for _ in range(steps):
            meter.count_step(16)
        clock.now += seconds
        total = clock.now - 50.0
        assert meter.read() == {
            "speed/tokens_per_second": tokens,
            "speed/mfu": mfu,
            "speed/memory_bytes": 7,
            "speed/seconds": pytest.approx(total),
        }
    meter.count_step(16)
    clock.now += 1000
    meter.restart()
    meter.count_step(16)
    meter.count_step(8)
    clock.now += 1
    read = meter.read()
    assert (read["speed/tokens_per_second"], read["speed/mfu"]) == (2000.0, 0.45)
    assert meter.total_seconds == clock.now - 50.0
    meter.count_step(16)
    assert meter.read()["speed/tokens_per_second"] > 0  # also where no time has passed
