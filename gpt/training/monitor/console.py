"""The terminal: a progress bar where there is one, plain lines in a pipe."""

import time
from collections.abc import Mapping
from typing import TextIO

from tqdm import tqdm

from gpt.training.monitor.base import Monitor


class Console(Monitor):
    """Prints what a person wants to follow; loss is in nats per token.

    Args:
        max_steps: steps of the whole run.
        file: where to; a bar is drawn only where this is a terminal.
    """

    def __init__(self, max_steps: int, file: TextIO) -> None:
        self._max_steps, self._file = max_steps, file

    def start(self, step: int) -> None:
        self._first_step, self._began = step, time.monotonic()
        self._bar = tqdm(
            total=self._max_steps, initial=step, unit="step", disable=None, file=self._file, smoothing=0.05
        )

    def line(self, text: str) -> None:
        """Print one line, above the bar where there is one."""
        self._bar.write(text, file=self._file)
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if "val/loss" in values:
            raw = values.get("val/loss_unaveraged")
            self.line(
                f"step {step:>6}  validation loss {values['val/loss']:.4f} nats "
                f"({values['val/bits_per_char']:.4f} bits per character)"
                + (f"; {raw:.4f} without averaging" if raw is not None else "")
            )
        elif "train/loss" in values and self._bar.disable:
            self.line(
                f"step {step:>6}  loss {values['train/loss']:.4f} nats  lr {values['train/learning_rate']:.2e}  "
                f"norm {values['train/grad_norm']:.2f}  {values['speed/tokens_per_second']:,.0f} tokens/s  "
                f"left {format_seconds(self._seconds_left(step))}"
            )

    def text(self, step: int, name: str, text: str) -> None:
        if name == "sample":
            self.line("\n".join(f"  | {line}" for line in text.splitlines()))

    def progress(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self._bar.set_postfix(loss=f"{loss:.4f} nats", refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        self._bar.close()

    def _seconds_left(self, step: int) -> float:
        return seconds_left(step - self._first_step, self._max_steps - step, time.monotonic() - self._began)


def seconds_left(done: int, left: int, elapsed: float) -> float:
    """Return the seconds that the steps that are left take, at the pace of those done."""
    return left * elapsed / done if done else 0.0


def format_seconds(seconds: float) -> str:
    """Write m:ss, or h:mm:ss from an hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
