"""The interface of a monitor, and several as one."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpt.report import Report


class Monitor:
    """Takes the metrics of a run; a subclass overrides what it wants to have.

    `step` is always the number of optimizer steps done so far.
    """

    def start(self, step: int) -> None:
        """Open files; what was reported after `step` before a resume no longer counts."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers by name, such as `train/loss`."""

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text, such as a sample."""

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Take tensors whose distributions are to be shown, such as weights and gradients."""

    def picture(self, step: int, name: str, pixels: NDArray[np.uint8]) -> None:
        """Take a picture, (height, width, 3)."""

    def progress(self, step: int, loss: float | None) -> None:
        """Note that a step is done; `loss` where it was read."""

    def close(self) -> None:
        """Flush; nothing is reported afterwards."""


class MonitorGroup(Monitor):
    """Passes everything on to each of its monitors; one that cannot write is warned about once, and the run goes on."""

    def __init__(self, monitors: Sequence[Monitor], report: Report) -> None:
        self._monitors, self._report = monitors, report
        self._failed: set[Monitor] = set()

    def start(self, step: int) -> None:
        self._tell(lambda monitor: monitor.start(step))
        self._monitors = [monitor for monitor in self._monitors if monitor not in self._failed]

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(lambda monitor: monitor.scalars(step, values))

    def text(self, step: int, name: str, text: str) -> None:
        self._tell(lambda monitor: monitor.text(step, name, text))

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        self._tell(lambda monitor: monitor.histograms(step, tensors))

    def picture(self, step: int, name: str, pixels: NDArray[np.uint8]) -> None:
        self._tell(lambda monitor: monitor.picture(step, name, pixels))

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
                        f"warning: {type(monitor).__name__} cannot write: {error.strerror or error}; training goes on"
                    )
