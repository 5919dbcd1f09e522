"""The metrics of a run: its speed, and monitors that write metrics to files and the terminal."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from gpt.checkpoint import RunFolder
from gpt.config import Config
from gpt.config.loading import dump_config
from gpt.model.flops import training_flops
from gpt.system.device import Compute
from gpt.system.files import MAX_METRICS_BYTES, parse_json, read_file, write_atomic
from gpt.system.machine import measure_matmul_rate, peak_memory_bytes
from gpt.system.progress import Report


class Monitor:
    """Receives the metrics of a run; a subclass overrides the methods that it needs.

    The argument `step` is always the number of optimizer steps done so far.
    """

    def start(self, step: int, evaluated: bool = True) -> None:
        """Open files, and drop the metrics that an earlier process recorded after `step`.

        Args:
            evaluated: whether the evaluation of `step` is in the checkpoint. If it is not, since
                the earlier process was killed before it saved the evaluation, the metrics of that
                evaluation are dropped too.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers by name, such as `train/loss`."""

    def sample(self, step: int, text: str) -> None:
        """Record a text that the model generated."""

    def progress(self, step: int, loss: float | None) -> None:
        """Show that a step is finished; `loss` is None if it was not read back from the device."""

    def close(self) -> None:
        """Flush and close files."""


class MonitorGroup(Monitor):
    """Passes everything on to each monitor.

    If a monitor cannot write, for example on a full disk, the user is warned once, and the run
    continues.
    """

    def __init__(self, monitors: Sequence[Monitor], report: Report) -> None:
        self.report = report
        self._monitors = monitors
        self._failed: set[Monitor] = set()

    def start(self, step: int, evaluated: bool = True) -> None:
        for monitor in self._monitors:
            with self._warn_once(monitor):
                monitor.start(step, evaluated)
        # A monitor that could not start has no file to write to, so that it is not called again.
        self._monitors = [monitor for monitor in self._monitors if monitor not in self._failed]

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for monitor in self._monitors:
            with self._warn_once(monitor):
                monitor.scalars(step, values)

    def sample(self, step: int, text: str) -> None:
        for monitor in self._monitors:
            with self._warn_once(monitor):
                monitor.sample(step, text)

    def progress(self, step: int, loss: float | None) -> None:
        for monitor in self._monitors:
            with self._warn_once(monitor):
                monitor.progress(step, loss)

    def close(self) -> None:
        for monitor in self._monitors:
            with self._warn_once(monitor):
                monitor.close()

    @contextmanager
    def _warn_once(self, monitor: Monitor) -> Iterator[None]:
        """Report the first OSError of a monitor as a warning, and ignore the errors that follow."""
        try:
            yield
        except OSError as error:
            if monitor not in self._failed:
                self._failed.add(monitor)
                name = type(monitor).__name__
                reason = error.strerror or error
                self.report(f"warning: {name} cannot write: {reason}; training continues")


class RunFiles(Monitor):
    """Writes scalars as lines of metrics.jsonl, and samples as `samples/step-000250.txt`.

    A resumed run first removes the lines after its step. The file is opened for every line, so that
    a deleted run folder is noticed.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def start(self, step: int, evaluated: bool = True) -> None:
        """Keep the complete lines up to `step`; a line cut short by a crash is dropped."""
        if not self._run.metrics.is_file():
            # Mode 644: everybody may read the metrics, but only the owner may write them. A umask
            # such as 002 would let others write them too.
            self._run.metrics.touch(mode=0o644)
            return
        lines = read_file(self._run.metrics, MAX_METRICS_BYTES).splitlines(keepends=True)
        kept_lines = [line for line in lines if _belongs_to_run(line, step, evaluated)]
        write_atomic(self._run.metrics, b"".join(kept_lines))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        # JSON has neither NaN nor infinity; null is written in their place.
        numbers: dict[str, float | None] = {}
        for name, value in values.items():
            numbers[name] = value if math.isfinite(value) else None
        with self._run.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")

    def sample(self, step: int, text: str) -> None:
        write_atomic(self._run.samples / f"step-{step:06d}.txt", f"{text}\n".encode())


def _belongs_to_run(line: bytes, step: int, evaluated: bool) -> bool:
    """Return whether a line of metrics.jsonl is kept when a run continues from `step`.

    Lines of later steps are dropped, since the run makes those steps again. Unless `evaluated` is
    true, the evaluation of `step` is dropped too, since the run repeats it.
    """
    try:
        row = parse_json(line)
        is_earlier_step = row["step"] < step
        is_this_step = row["step"] == step
        is_evaluation = "val/loss" in row
    except (ValueError, KeyError, TypeError):
        # A process was killed while it wrote this line.
        return False
    if not line.endswith(b"\n"):
        return False  # the process was killed just before it wrote the end of this line
    is_repeated = is_evaluation and not evaluated
    return is_earlier_step or (is_this_step and not is_repeated)


TENSORBOARD_TAGS = {"train/loss": "loss/train", "val/loss": "loss/validation"}
"""Names of metrics in TensorBoard, which sorts them: the losses stand first, in one group."""


class TensorBoard(Monitor):
    """Writes event files into the run folder, with the configuration and the samples as texts."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder = folder
        self._config = config

    def start(self, step: int, evaluated: bool = True) -> None:
        """Open an event file, and let TensorBoard hide points of later steps in earlier files."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)
        if step == 0:
            self._writer.add_text("config", _preformatted(dump_config(self._config)), 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(TENSORBOARD_TAGS.get(name, name), value, step)

    def sample(self, step: int, text: str) -> None:
        self._writer.add_text("sample", _preformatted(text), step)

    def close(self) -> None:
        self._writer.close()


class Console(Monitor):
    """Shows progress: a bar on a terminal, plain lines in a pipe."""

    def __init__(self, max_steps: int, file: TextIO) -> None:
        self._max_steps = max_steps
        self._file = file

    def start(self, step: int, evaluated: bool = True) -> None:
        """Show the bar, and begin to measure time, to estimate how much of it is left."""
        self._first_step = step
        self._started_at = time.monotonic()
        self._bar = tqdm(
            total=self._max_steps,
            initial=step,
            unit="step",
            disable=None,  # shows the bar only if the file is a terminal
            file=self._file,
            smoothing=0.05,  # a long average, so that an evaluation hardly changes the estimate
        )

    def _write_line(self, text: str) -> None:
        self._bar.write(text, file=self._file)
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write a line for an evaluation, and without a bar also for the loss of a step."""
        if "val/loss" in values:
            self._write_line(
                f"step {step:>6}  validation loss {values['val/loss']:.4f} nats "
                f"({values['val/bits_per_char']:.4f} bits per character)"
            )
        elif "train/loss" in values and self._bar.disable:
            # The bar shows the loss and the time left. A pipe has no bar, so that a line says both.
            # `max` avoids a division by zero if this process has made no step yet.
            seconds = time.monotonic() - self._started_at
            steps_done = step - self._first_step
            seconds_per_step = seconds / max(1, steps_done)
            seconds_left = seconds_per_step * (self._max_steps - step)
            self._write_line(
                f"step {step:>6}  loss {values['train/loss']:.4f} nats  "
                f"lr {values['train/learning_rate']:.2e}  "
                f"grad norm {values['train/grad_norm']:.2f}  "
                f"{values['speed/tokens_per_second']:,.0f} tokens/s  "
                f"left {tqdm.format_interval(seconds_left)}"
            )

    def sample(self, step: int, text: str) -> None:
        quoted = [f"  | {line}" for line in text.splitlines()]
        self._write_line("\n".join([f"step {step:>6}  the model writes:", *quoted]))

    def progress(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self._bar.set_postfix(loss=f"{loss:.4f} nats", refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _preformatted(text: str) -> str:
    """Return the text as Markdown that shows it unchanged: an indented block."""
    return "\n".join("    " + line for line in text.splitlines())


class SpeedMeter:
    """Measures the throughput of a run, whose steps several processes may share."""

    def __init__(
        self,
        config: Config,
        compute: Compute,
        processes: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = config
        self.clock = clock
        self.tokens_per_step = config.train.sequences * config.model.block_size
        self._compute = compute
        self._processes = processes  # the number of processes that share the steps

    def start(self, seconds_before: float) -> None:
        """Begin to measure a run that earlier processes have trained for `seconds_before`."""
        # The FLOP/s of a large matmul on the device of each process are the machine's FLOP/s, with
        # which `read` compares those of the model.
        rate = measure_matmul_rate(self._compute.device, self._compute.dtype)
        self._machine_flops_per_second = self._processes * rate
        # The start is moved back, so that `total_seconds` includes the time of earlier processes.
        self._started_at = self.clock() - seconds_before
        self.restart()

    @property
    def total_seconds(self) -> float:
        """Wall time of the whole run so far, evaluations and samples included."""
        return self.clock() - self._started_at

    def restart(self) -> None:
        """Begin a new interval.

        The time since the last step, for example that of an evaluation, then counts for no step.
        """
        self._interval_began_at = self.clock()
        self._steps = 0
        self._flops = 0

    def count_step(self, length: int) -> None:
        """Count a step with sequences of `length` tokens."""
        num_sequences = self.tokens_per_step // length
        self._steps += 1
        self._flops += training_flops(self.config.model, num_sequences, length)

    def read(self) -> dict[str, float]:
        """Return the metrics since the last reading or restart, by name, and begin a new interval.

        MFU is the FLOP/s of the model as a fraction of the machine's FLOP/s (Chowdhery et al. 2022,
        2204.02311, appendix B).
        """
        # A coarse clock may show the same time as at the last reading. A nanosecond is then taken
        # for the time, since a division by zero would end the run.
        seconds = max(self.clock() - self._interval_began_at, 1e-9)
        num_tokens = self._steps * self.tokens_per_step
        flops_per_second = self._flops / seconds
        metrics = {
            "speed/tokens_per_second": num_tokens / seconds,
            "speed/mfu": flops_per_second / self._machine_flops_per_second,
            "speed/memory_bytes": peak_memory_bytes(self._compute.device),
            "speed/seconds": self.total_seconds,
        }
        self.restart()
        return metrics
