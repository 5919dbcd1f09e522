"""The curve of a run, below a cell of a notebook."""

import time
from collections.abc import Mapping
from html import escape
from typing import Any

from tqdm import tqdm

from gpt.extras.inspection.rendering.curves import WIDTH, Point, loss_curves
from gpt.training.monitor import Monitor

SECONDS_BETWEEN = 1.0


class LiveCurve(Monitor):
    """Shows one picture below a cell while a run trains, drawn again at most once a second and after evaluations."""

    def __init__(self, name: str, max_steps: int) -> None:
        self._name, self._max_steps = name, max_steps
        self._training: list[Point] = []
        self._validation: list[Point] = []
        self._sample = ""

    def start(self, step: int, evaluated: bool = True) -> None:
        self._step = self._first_step = step
        self._began = time.monotonic()
        self._handle: Any = None
        if step < self._max_steps:  # a run that is finished has nothing to show
            self._show()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if "val/loss" in values:
            self._validation.append((step, values["val/loss"]))
            self._show()
        elif "train/loss" in values:
            self._training.append((step, values["train/loss"]))

    def sample(self, step: int, text: str) -> None:
        self._sample = f"a sample at step {step:,}:\n{text}"
        self._show()

    def progress(self, step: int, loss: float | None) -> None:
        self._step = step
        if time.monotonic() - self._shown >= SECONDS_BETWEEN:
            self._show()

    def close(self) -> None:
        if self._handle is not None:
            self._show()

    def to_html(self) -> str:
        """Return a progress bar, the curves, and the newest sample."""
        style = "margin:0.5em 0;white-space:pre-wrap;font:0.9em/1.4 monospace"
        sample = f'<pre style="{style}">{escape(self._sample)}</pre>' if self._sample else ""
        return (
            f'<div style="max-width:{WIDTH}px">'
            '<div style="display:flex;justify-content:space-between;font-variant-numeric:tabular-nums">'
            f"<span>{escape(self._name)}: step {self._step:,} of {self._max_steps:,}</span>"
            f"<span>{self._time()}</span></div>"
            f'<progress value="{self._step}" max="{self._max_steps}" style="width:100%"></progress>'
            f"{loss_curves(self._training, self._validation, self._max_steps)}{sample}</div>"
        )

    def _time(self) -> str:
        """Return the time of this process so far, and an estimate of the rest from its pace."""
        seconds = time.monotonic() - self._began
        done, left = self._step - self._first_step, self._max_steps - self._step
        rest = f", {tqdm.format_interval(seconds / done * left)} left" if done and left else ""
        return f"{tqdm.format_interval(seconds)}{rest}"

    def _show(self) -> None:
        from IPython.display import HTML, display

        self._shown, picture = time.monotonic(), HTML(self.to_html())
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
