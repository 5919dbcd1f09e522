"""Show the losses of a run below the cell of a notebook that trains it."""

import time
from collections.abc import Mapping
from html import escape
from typing import Any

from tqdm import tqdm

from gpt.extras.inspection.rendering.curves import WIDTH, Point, loss_curves
from gpt.training.monitor import Monitor

SECONDS_BETWEEN_PICTURES = 1.0
"""Shortest time between two pictures, so that drawing takes little of the time of training."""


class LiveCurve(Monitor):
    """Shows one picture of a run while it trains.

    It is drawn again after every evaluation and sample, and at most once a second in between.
    """

    def __init__(self, name: str, max_steps: int) -> None:
        self._name = name
        self._max_steps = max_steps
        self._training: list[Point] = []
        self._validation: list[Point] = []
        self._sample = ""

    def start(self, step: int, evaluated: bool = True) -> None:
        self._first_step = step  # not 0 where a run is resumed
        self._step = step
        self._start_time = time.monotonic()
        self._handle: Any = None  # of the picture in the notebook, once there is one
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
        if time.monotonic() - self._last_shown >= SECONDS_BETWEEN_PICTURES:
            self._show()

    def close(self) -> None:
        if self._handle is not None:
            self._show()

    def to_html(self) -> str:
        """Return a progress bar, the curves, and the newest sample."""
        style = "margin:0.5em 0;white-space:pre-wrap;font:0.9em/1.4 monospace"
        sample = f'<pre style="{style}">{escape(self._sample)}</pre>' if self._sample else ""
        curves = loss_curves(self._training, self._validation, self._max_steps)
        line = "display:flex;justify-content:space-between;font-variant-numeric:tabular-nums"
        bar = (
            f'<progress value="{self._step}" max="{self._max_steps}" style="width:100%"></progress>'
        )
        return (
            f'<div style="max-width:{WIDTH}px">'
            f'<div style="{line}">'
            f"<span>{escape(self._name)}: step {self._step:,} of {self._max_steps:,}</span>"
            f"<span>{self._time()}</span></div>"
            f"{bar}{curves}{sample}</div>"
        )

    def _time(self) -> str:
        """Return the time of this process so far, and an estimate of the rest from its pace."""
        seconds = time.monotonic() - self._start_time
        elapsed = tqdm.format_interval(seconds)
        done = self._step - self._first_step
        left = self._max_steps - self._step
        if not done or not left:
            return elapsed
        remaining = tqdm.format_interval(seconds / done * left)
        return f"{elapsed}, {remaining} left"

    def _show(self) -> None:
        # IPython is there only in a notebook, and nothing else may need it.
        from IPython.display import HTML, display

        self._last_shown = time.monotonic()
        picture = HTML(self.to_html())
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
