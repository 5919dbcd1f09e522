"""A run folder as an object: its model, its metrics, its text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.api.evaluation import Windows, evaluate_corpus
from gpt.api.metrics import read_metrics
from gpt.api.plotting import plot
from gpt.checkpoint import (
    RUNS,
    Loaded,
    find_checkpoint,
    find_place,
    load_trained,
    read_state,
    similar_run,
)
from gpt.config import Config
from gpt.config.sources import load_config
from gpt.data import Tokenizer
from gpt.data.pairs import Message
from gpt.data.tokenizers import convert_newlines
from gpt.extras.inspection.rendering.curves import loss_curves, points_of
from gpt.generation.batch import Batch
from gpt.generation.conversation import encode_conversation
from gpt.generation.generator import generate, sampling_params
from gpt.generation.runtime import build_runtime
from gpt.model import GPT
from gpt.system.device import choose_compute, choose_device
from gpt.system.errors import CheckpointError, GenerationError, GPTError
from gpt.system.files import text_for_path
from gpt.system.progress import print_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Run:
    """A run folder; its best checkpoint is loaded when it is first needed.

    Attributes:
        folder: the run folder.

    Args:
        path: a run folder, its name below `runs`, or a checkpoint folder as of `gpt.save`.
        device: device of the model: auto, cpu, cuda, cuda:N or mps.

    Raises:
        CheckpointError: there is no run.
    """

    def __init__(self, path: str | Path, device: str = "auto") -> None:
        text = text_for_path(path)
        if text is not None:
            raise CheckpointError(f"{text}; give a run folder")
        found = find_place(Path(path), RUNS)
        self.folder = found or Path(path)
        self._device = device
        if not (self.folder / "config.yaml").is_file():
            suggestion = "" if found is not None else similar_run(self.folder, RUNS)
            raise CheckpointError(f"{path} is not a run folder: it has no config.yaml{suggestion}")

    def __repr__(self) -> str:
        try:
            state = read_state(find_checkpoint(self.folder, self.folder.parent))
            loss = f", validation loss {state['val_loss']:.4f} at step {state['step']}"
        except (GPTError, KeyError, TypeError, ValueError):
            # A run that has only begun has no checkpoint, and one of `gpt.save` has no loss.
            loss = ""
        return f"Run({str(self.folder)!r}{loss})"

    def _repr_html_(self) -> str:
        """Return the run with its loss curves, if it has any, for a notebook."""
        name = f"<p><code>{escape(repr(self))}</code></p>"
        try:
            rows = self.metrics
            last_step = self.config.train.max_steps
        except GPTError:  # a checkpoint of `gpt.save` has no metrics
            return name
        training = points_of(rows, "train/loss")
        validation = points_of(rows, "val/loss")
        return name + loss_curves(training, validation, last_step)

    @property
    def config(self) -> Config:
        """Return the configuration of the run, with the values that were left out as defaults."""
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
        """Return the lines of metrics.jsonl in order, each with a `step` and numbers by name."""
        return read_metrics(self.folder)

    def sample(self, prompt: str = "", **params: Any) -> str:
        """Return the prompt and the text that follows it.

        A run on questions and answers reads the prompt as a question, as `ask` does, and its answer
        stands in a line of its own.

        Args:
            prompt: the beginning of the text; if it is empty, the text starts as after a line end.
            params: fields of `SamplingParams`, which replace those of the run's configuration.

        Raises:
            GPTError: see `gpt.generate`.
        """
        if self._loaded.config.data.items == "pairs":
            return f"{prompt}\n{self.ask(prompt, **params)}"
        defaults = self._loaded.config.sample.model_dump(exclude_unset=True)
        text = generate(self.model, self.tokenizer, prompt, **{**defaults, **params})
        return convert_newlines(prompt) + text  # the model, too, has read \n in place of \r\n

    def ask(self, question: str, history: Sequence[tuple[str, str]] = (), **params: Any) -> str:
        """Return the answer of a run on questions and answers, as `gpt chat` gives it.

        Args:
            history: earlier questions with their answers, oldest first. The oldest are left out
                where the window does not hold them all.
            params: fields of `SamplingParams`, which replace those of the run's configuration.

        Raises:
            GPTError: the run was trained on something else, or the question does not fit.
        """
        loaded = self._loaded
        if loaded.config.data.items != "pairs":
            raise GenerationError(
                f"{self.folder} was not trained on questions and answers; take `sample`"
            )
        asked: list[Message] = []
        for earlier, answer in history:
            asked += [Message("user", earlier), Message("assistant", answer)]
        asked.append(Message("user", question))
        defaults = loaded.config.sample.model_dump(exclude_unset=True)
        chosen = sampling_params({**defaults, **params})
        # Ids of the model that the tokenizer does not have are not sampled: they have no text.
        limited = chosen.limited_to(self.tokenizer.vocab_size)
        ids = encode_conversation(self.tokenizer, asked, limited, self.model.config.block_size)
        batch = Batch(build_runtime(self.model), [ids], limited, [limited.seed], self.tokenizer)
        return "".join(chunk.text for chunk in batch)

    def evaluate(self, split: str = "val") -> dict[str, Any]:
        """Compute the loss of the model over a split of its corpus, as `gpt evaluate` does.

        Args:
            split: train, val or test.

        Returns:
            A dict with `checkpoint`, `protocol`, `split`, `loss` in nats per token,
            `bits_per_char`, `tokens` and `block_size`; of a run on items also what the last line of
            `gpt evaluate` says of them.

        Raises:
            GPTError: the prepared corpus is gone, or has no such split.
        """
        loaded = self._loaded
        device = next(loaded.model.parameters()).device
        compute = choose_compute(str(device), "float32", print_line)
        summary = evaluate_corpus(loaded, compute, print_line, split)
        return {"checkpoint": str(loaded.folder), "protocol": Windows().protocol, **summary}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the training and validation loss; see `gpt.plot`."""
        return plot(self.folder, path=path)

    @cached_property
    def _loaded(self) -> Loaded:
        return load_trained(self.folder, self.folder.parent, choose_device(self._device))
