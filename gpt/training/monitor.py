"""Monitors that record the metrics of a run: TensorBoard, a JSON lines file, sample files, the terminal."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from gpt.config import Config
from gpt.config.loading import dump_config
from gpt.system.files import parse_json, write_atomic
from gpt.system.progress import Report


class Monitor:
    """Receives the metrics of a run; a subclass overrides what it needs.

    `step` is always the number of optimizer steps done so far.
    """

    def start(self, step: int, evaluated: bool = True) -> None:
        """Open files, and drop what an earlier process recorded after `step`.

        Without `evaluated` the evaluation of that step is dropped too: a process was killed before it was saved.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers by name, such as `train/loss`."""

    def text(self, step: int, name: str, text: str) -> None:
        """Record a text, such as a sample."""

    def progress(self, step: int, loss: float | None) -> None:
        """Count a finished step; `loss` is None if it was not read back."""

    def close(self) -> None:
        """Flush and close files."""


class MonitorGroup(Monitor):
    """Passes everything on to each monitor; one that cannot write causes a warning, and the run continues."""

    def __init__(self, monitors: Sequence[Monitor], report: Report) -> None:
        self._monitors, self._report = monitors, report
        self._failed: set[Monitor] = set()

    def start(self, step: int, evaluated: bool = True) -> None:
        self._tell(lambda monitor: monitor.start(step, evaluated))
        self._monitors = [monitor for monitor in self._monitors if monitor not in self._failed]

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(lambda monitor: monitor.scalars(step, values))

    def text(self, step: int, name: str, text: str) -> None:
        self._tell(lambda monitor: monitor.text(step, name, text))

    def progress(self, step: int, loss: float | None) -> None:
        self._tell(lambda monitor: monitor.progress(step, loss))

    def close(self) -> None:
        self._tell(lambda monitor: monitor.close())

    def _tell(self, call: Callable[[Monitor], None]) -> None:
        for monitor in self._monitors:
            try:
                call(monitor)
            except OSError as error:
                if monitor not in self._failed:
                    self._failed.add(monitor)
                    self._report(
                        f"warning: {type(monitor).__name__} cannot write: {error.strerror or error}; training continues"
                    )


class MetricsFile(Monitor):
    """Writes each set of scalars as a line of JSON; a resumed run first removes the lines after its step.

    The file is opened for every line, so that a deleted run folder is noticed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, step: int, evaluated: bool = True) -> None:
        _drop_lines_after(self._path, step, evaluated)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        # JSON has no NaN
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")


class SampleFiles(Monitor):
    """Writes each sample as `samples/step-000250.txt`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, step: int, name: str, text: str) -> None:
        if name == "sample":
            (self._folder / f"step-{step:06d}.txt").write_text(text + "\n", encoding="utf-8")


class TensorBoard(Monitor):
    """Writes event files into the run folder; the configuration is shown as text, its values as hyperparameters."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self._config = folder, config

    def start(self, step: int, evaluated: bool = True) -> None:
        """Open an event file; points of later steps, from before a resume, are hidden."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)
        if step == 0:
            self._writer.add_text("config", _preformatted(dump_config(self._config)), 0)
            leaves = self._config.leaves().items()
            values = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in leaves}
            # add_hparams would open a second folder
            _, *session = hparams(values, {})
            # omitting the experiment summary makes TensorBoard list differing keys first
            for summary in session:
                self._writer.file_writer.add_summary(summary)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, _preformatted(text), step)

    def close(self) -> None:
        self._writer.close()


class Console(Monitor):
    """Shows progress: a bar on a terminal, plain lines in a pipe."""

    def __init__(self, max_steps: int, file: TextIO) -> None:
        self._max_steps, self._file = max_steps, file

    def start(self, step: int, evaluated: bool = True) -> None:
        self._first_step, self._began = step, time.monotonic()
        self._bar = tqdm(
            total=self._max_steps, initial=step, unit="step", disable=None, file=self._file, smoothing=0.05
        )

    def line(self, text: str) -> None:
        """Print above the bar if there is one."""
        self._bar.write(text, file=self._file)
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if "val/loss" in values:
            self.line(
                f"step {step:>6}  validation loss {values['val/loss']:.4f} nats "
                f"({values['val/bits_per_char']:.4f} bits per character)"
            )
        elif "train/loss" in values and self._bar.disable:
            pace = (time.monotonic() - self._began) / max(1, step - self._first_step)
            self.line(
                f"step {step:>6}  loss {values['train/loss']:.4f} nats  lr {values['train/learning_rate']:.2e}  "
                f"grad norm {values['train/grad_norm']:.2f}  {values['speed/tokens_per_second']:,.0f} tokens/s  "
                f"left {tqdm.format_interval(pace * (self._max_steps - step))}"
            )

    def text(self, step: int, name: str, text: str) -> None:
        if name == "sample":
            self.line("\n".join([f"step {step:>6}  the model writes:", *(f"  | {line}" for line in text.splitlines())]))

    def progress(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self._bar.set_postfix(loss=f"{loss:.4f} nats", refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _drop_lines_after(path: Path, step: int, evaluated: bool) -> None:
    """Keep the complete lines up to `step`; a line cut short by a crash is dropped."""
    kept = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            row = parse_json(line)
            is_done = row["step"] < step or (row["step"] == step and (evaluated or "val/loss" not in row))
            if line.endswith(b"\n") and is_done:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    if path.is_file():
        write_atomic(path, b"".join(kept))


def _preformatted(text: str) -> str:
    """Return the text as Markdown that shows it unchanged: an indented block."""
    return "\n".join("    " + line for line in text.splitlines())
