"""Scalars, texts, histograms and pictures for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpt.config import Config, dump_config
from gpt.training.monitor.base import Monitor


class TensorBoard(Monitor):
    """Writes event files into the run folder.

    Args:
        folder: of the run.
        config: shown as text, and its leaves as hyper-parameters.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        self._folder, self._config = folder, config

    def start(self, step: int) -> None:
        """Open an event file; points of later steps, from before a resume, are hidden."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)
        if step == 0:
            self._writer.add_text("config", _preformatted(dump_config(self._config)), 0)
            for summary in hparams(_leaves(self._config), {"val/loss": 0.0}):  # add_hparams would open a second folder
                self._writer.file_writer.add_summary(summary)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, _preformatted(text), step)

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._writer.add_histogram(name, tensor.float().cpu(), step)

    def picture(self, step: int, name: str, pixels: NDArray[np.uint8]) -> None:
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


def _preformatted(text: str) -> str:
    """Return Markdown that shows the text as it is: an indented block."""
    return "\n".join("    " + line for line in text.splitlines())


def _leaves(config: Config) -> dict[str, bool | int | float | str]:
    return {
        f"{section}.{key}": value if isinstance(value, bool | int | float | str) else str(value)
        for section, keys in config.model_dump(mode="json").items()
        for key, value in keys.items()
    }
