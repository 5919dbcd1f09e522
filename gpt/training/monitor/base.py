"""What a monitor is, and several as one."""

from collections.abc import Mapping, Sequence

from torch import Tensor


class Monitor:
    """Takes what a run has to say; this one keeps nothing.

    `step` is always the number of optimizer steps done so far.
    """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers by name, such as `train/loss`."""

    def text(self, step: int, name: str, text: str) -> None:
        """A text, such as a sample."""

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Distributions of weights and gradients."""

    def progress(self, step: int, loss: float | None) -> None:
        """A step is done; `loss` where it was read."""

    def close(self) -> None:
        """Flush; nothing is reported afterwards."""


class MonitorGroup(Monitor):
    """Passes everything on to each of its monitors."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = monitors

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for monitor in self._monitors:
            monitor.scalars(step, values)

    def text(self, step: int, name: str, text: str) -> None:
        for monitor in self._monitors:
            monitor.text(step, name, text)

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        for monitor in self._monitors:
            monitor.histograms(step, tensors)

    def progress(self, step: int, loss: float | None) -> None:
        for monitor in self._monitors:
            monitor.progress(step, loss)

    def close(self) -> None:
        for monitor in self._monitors:
            monitor.close()
