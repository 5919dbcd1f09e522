"""A run folder as an object: its model, its metrics, its text."""

from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from gpt.checkpoint import Loaded, RunFolder, load_trained
from gpt.config import Config
from gpt.config.loading import load_config
from gpt.data import Tokenizer
from gpt.device import choose_device
from gpt.errors import CheckpointError
from gpt.files import parse_json
from gpt.generation import generate
from gpt.inspection.rendering.curves import loss_curves, points_of
from gpt.model import GPT


class Run:
    """A run folder; its best checkpoint is loaded when it is first needed.

    Attributes:
        folder: the run folder.

    Args:
        path: a run folder, or a checkpoint folder such as `gpt.save` writes.
        device: device of the model: auto, cpu, cuda, cuda:N or mps.

    Raises:
        CheckpointError: there is no run.
    """

    def __init__(self, path: str | Path, device: str = "auto") -> None:
        self.folder, self._device = Path(path), device
        if not (self.folder / "config.yaml").is_file():
            raise CheckpointError(f"{path} is not a run folder: it has no config.yaml")

    def __repr__(self) -> str:
        last = next((row for row in reversed(self._rows()) if "val/loss" in row), None)
        loss = "" if last is None else f", validation loss {last['val/loss']:.4f} at step {last['step']}"
        return f"Run({str(self.folder)!r}{loss})"

    def _repr_html_(self) -> str:
        """Return the run with its loss curves, for a notebook."""
        rows = self.metrics
        curves = (points_of(rows, "train/loss"), points_of(rows, "val/loss"))
        return f"<p><code>{escape(repr(self))}</code></p>{loss_curves(*curves, self.config.train.max_steps)}"

    @property
    def config(self) -> Config:
        """Return the configuration of the run, every value of it."""
        return load_config(self.folder / "config.yaml").config

    @property
    def model(self) -> GPT:
        """Return the model of the best checkpoint, in eval mode."""
        return self._loaded.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the model."""
        return self._loaded.tokenizer

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, in order: each has a `step` and some values by name."""
        return self._rows()

    def sample(self, prompt: str = "", **params: Any) -> str:
        """Return the prompt and the text that follows it.

        Args:
            prompt: may be empty: the text then starts after a line end.
            params: fields of `SamplingParams`, which replace those of the run's configuration.

        Raises:
            GPTError: see `gpt.generate`.
        """
        defaults = self._loaded.config.sample.model_dump(exclude_unset=True)
        return prompt + generate(self.model, self.tokenizer, prompt, **{**defaults, **params})

    @cached_property
    def _loaded(self) -> Loaded:
        return load_trained(self.folder, self.folder.parent, choose_device(self._device))

    def _rows(self) -> list[dict[str, Any]]:
        try:
            lines = RunFolder(self.folder).metrics.read_bytes().splitlines()
        except OSError:
            return []
        return [parse_json(line) for line in lines]
