import errno
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.backend_context import Context

from gpt.config import Config
from gpt.training.monitor import Console, MetricsFile, Monitor, MonitorGroup, SampleFiles, TensorBoard

CONFIG = Config.model_validate({"model": {"n_layer": 3}, "optim": {"learning_rate": 0.25}})


# --- metrics.jsonl -------------------------------------------------------------------------------


def write_rows(path: Path, steps: range, value: float = 1.0) -> None:
    metrics = MetricsFile(path)
    metrics.start(0)
    for step in steps:
        metrics.scalars(step, {"train/loss": value + step / 10})


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_call_is_a_line_at_once(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.scalars(3, {"train/loss": 0.1, "train/grad_norm": 1e-9})
    content = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert content == '{"step": 3, "train/loss": 0.1, "train/grad_norm": 1e-09}\n'


@pytest.mark.parametrize(("resume_step", "left"), [(4, [1, 2, 3, 4]), (9, [1, 2, 3, 4, 5, 6]), (0, [])])
def test_a_resume_drops_the_lines_after_its_step_and_keeps_the_others_as_they_were(
    tmp_path: Path, resume_step: int, left: list[int]
) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, range(1, 7))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    MetricsFile(path).start(resume_step)
    assert steps_in(path) == left
    assert path.read_text(encoding="utf-8") == "".join(lines[: len(left)])


@pytest.mark.parametrize("step", [0, 6])
def test_an_evaluation_that_is_not_saved_is_dropped_with_the_training_loss_kept(tmp_path: Path, step: int) -> None:
    """A process was killed between recording and saving it: it will be recorded again."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.scalars(step, {"train/loss": 1.0})
    metrics.scalars(step, {"val/loss": 1.0})
    metrics.start(step, evaluated=True)
    assert steps_in(tmp_path / "metrics.jsonl") == [step, step]
    metrics.start(step, evaluated=False)
    assert (tmp_path / "metrics.jsonl").read_text() == f'{{"step": {step}, "train/loss": 1.0}}\n'


@pytest.mark.parametrize("cut", [1, 2, 10, 25])
def test_a_line_that_a_crash_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, range(1, 4))
    path.write_bytes(path.read_bytes()[:-cut])
    metrics = MetricsFile(path)
    metrics.start(3)
    metrics.scalars(4, {"train/loss": 1.0})
    assert steps_in(path) == [1, 2, 4]


# --- TensorBoard ---------------------------------------------------------------------------------


def read_events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0}).Reload()


def points(events: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(name)]


def text_of(events: EventAccumulator, name: str) -> str:
    return events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()


def test_scalars_texts_and_histograms_can_be_read_back(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, CONFIG)
    board.start(0)
    for step in (10, 20):
        board.scalars(step, {"train/loss": 1.0 / step, "val/loss": 2.0})
    board.text(20, "sample", "KING:\n  <b>Who?</b>")
    board.histograms(20, {"weights/wte": torch.arange(10, dtype=torch.bfloat16)})
    board.close()
    events = read_events(tmp_path)
    assert points(events, "train/loss") == [(10, pytest.approx(0.1)), (20, pytest.approx(0.05))]
    assert text_of(events, "sample") == "    KING:\n      <b>Who?</b>"
    assert events.Histograms("weights/wte")[0].histogram_value.sum == 45
    assert "    learning_rate: 0.25" in text_of(events, "config")


def test_the_hparams_tab_shows_the_keys_first_in_which_runs_differ(tmp_path: Path) -> None:
    """As TensorBoard's own plugin reads the folder of several runs."""
    for number in (1, 2):
        board = TensorBoard(tmp_path / str(number), Config.model_validate({"train": {"batch_size": number}}))
        board.start(0)
        board.scalars(0, {"val/loss": 1.0 / number})
        board.close()
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(runs, str(tmp_path))))
    found = context.hparams_metadata(RequestContext(), "")
    limit = 1
    experiment = context.experiment_from_metadata(RequestContext(), "", True, found, [], limit)
    (key,) = experiment.hparam_infos
    assert (key.name, key.domain_interval.min_value, key.domain_interval.max_value) == ("train.batch_size", 1, 2)
    assert [metric.name.tag for metric in experiment.metric_infos] == ["val/loss"]


@pytest.mark.parametrize("resume_step", [0, 3, 6])
def test_a_resume_hides_the_points_after_its_step_and_no_others(tmp_path: Path, resume_step: int) -> None:
    """Also where it resumes from a checkpoint of step 0."""
    board = TensorBoard(tmp_path, CONFIG)
    board.start(0)
    for step in range(7):
        board.scalars(step, {"train/loss": 1.0})
    board.close()
    for path in tmp_path.glob("events*"):  # files are read by name, which begins with the second
        path.rename(path.with_name(path.name.replace("tfevents.1", "tfevents.0", 1)))
    board = TensorBoard(tmp_path, CONFIG)
    board.start(resume_step)
    for step in range(resume_step + 1, 9):
        board.scalars(step, {"train/loss": 2.0})
    board.close()
    expected = [(step, 1.0 if step <= resume_step else 2.0) for step in range(9)]
    assert points(read_events(tmp_path), "train/loss") == expected


def test_a_picture_arrives_as_it_was(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, CONFIG)
    board.start(0)
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    board.picture(7, "attention", pixels)
    board.close()
    (event,) = read_events(tmp_path).Images("attention")
    assert event.step == 7
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(event.encoded_image_string))), pixels)


# --- the terminal --------------------------------------------------------------------------------

TRAINED = {
    "train/loss": 2.5,
    "train/learning_rate": 3e-4,
    "train/grad_norm": 0.75,
    "speed/tokens_per_second": 12345.6,
    "speed/mfu": 0.5,
}


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_in_a_pipe_there_is_a_line_for_each_report_and_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 20 of 80 steps in 40 seconds, 60 steps take 120 more; steps before the resume do not count."""
    clock = iter([1000.0, 1040.0])
    monkeypatch.setattr("gpt.training.monitor.time.monotonic", lambda: next(clock))
    pipe = io.StringIO()
    console = Console(max_steps=180, file=pipe)
    console.start(100)
    console.progress(120, 2.5)
    console.scalars(120, TRAINED)
    console.scalars(120, {"val/loss": 2.25, "val/bits_per_char": 3.2461})
    console.text(120, "sample", "first\n\nthird")
    console.text(120, "other", "not shown")
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


# --- samples -------------------------------------------------------------------------------------


def test_each_sample_is_a_file_of_its_step(tmp_path: Path) -> None:
    samples = SampleFiles(tmp_path)
    samples.text(250, "sample", "Zwölf 十二\nlines")
    samples.text(250, "config", "not a sample")
    samples.text(1_000_000, "sample", "")
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "step-000250.txt": "Zwölf 十二\nlines\n",
        "step-1000000.txt": "\n",
    }


# --- several as one ------------------------------------------------------------------------------


class Recorder(Monitor):
    """Notes the names of calls, and raises what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.error = error

    def note(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error

    def start(self, step: int, evaluated: bool = True) -> None:
        self.note("start")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.note("scalars")

    def text(self, step: int, name: str, text: str) -> None:
        self.note("text")

    def histograms(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.note("histograms")

    def progress(self, step: int, loss: float | None) -> None:
        self.note("progress")

    def close(self) -> None:
        self.note("close")


CALLS: list[Callable[[Monitor], None]] = [
    lambda monitor: monitor.scalars(1, {}),
    lambda monitor: monitor.text(1, "sample", ""),
    lambda monitor: monitor.histograms(1, {}),
    lambda monitor: monitor.progress(1, None),
    lambda monitor: monitor.close(),
]
NAMES = ["scalars", "text", "histograms", "progress", "close"]


def test_every_monitor_hears_everything_although_one_cannot_write_which_is_said_once() -> None:
    lines: list[str] = []
    full, whole = Recorder(OSError(errno.ENOSPC, "No space left on device")), Recorder()
    group = MonitorGroup([full, whole], lines.append)
    for call in CALLS:
        call(group)
    assert full.calls == whole.calls == NAMES
    assert lines == ["warning: Recorder cannot write: No space left on device; training continues"]


def test_a_reader_who_went_away_does_not_end_the_run() -> None:
    lines: list[str] = []
    MonitorGroup([Recorder(BrokenPipeError(errno.EPIPE, "Broken pipe"))], lines.append).scalars(1, {})
    assert lines == ["warning: Recorder cannot write: Broken pipe; training continues"]


def test_a_monitor_that_cannot_start_is_left_out() -> None:
    lines: list[str] = []
    full, whole = Recorder(OSError(errno.EISDIR, "Is a directory")), Recorder()
    group = MonitorGroup([full, whole], lines.append)
    group.start(0)
    group.scalars(1, {})
    assert (full.calls, whole.calls) == (["start"], ["start", "scalars"])
    assert lines == ["warning: Recorder cannot write: Is a directory; training continues"]


def test_metrics_of_a_folder_that_was_deleted_are_not_lost_in_silence(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "run").mkdir()
    group = MonitorGroup([MetricsFile(tmp_path / "run" / "metrics.jsonl")], lines.append)
    group.start(0)
    group.scalars(1, {"train/loss": 1.0})
    shutil.rmtree(tmp_path / "run")
    group.scalars(2, {"train/loss": 1.0})
    assert lines == ["warning: MetricsFile cannot write: No such file or directory; training continues"]
    (tmp_path / "run").mkdir()
    group.scalars(3, {"train/loss": 1.0})
    assert steps_in(tmp_path / "run" / "metrics.jsonl") == [3]


@pytest.mark.parametrize("line", [b"\0\0\0\n", b"\xff\n", b"[]\n", b"{}\n", b'{"step": null}\n', b"\n"])
def test_a_damaged_line_is_dropped_and_those_after_it_stay(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, range(1, 4))
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + rest)
    MetricsFile(path).start(9)
    assert steps_in(path) == [1, 2, 3]


def test_a_mistake_of_ours_ends_the_run() -> None:
    with pytest.raises(ValueError, match="a bug"):
        MonitorGroup([Recorder(ValueError("a bug"))], pytest.fail).scalars(1, {})
