"""Distillation: a run learns from the text, and from what a finished run, its teacher, predicts for the text.

The predictions are smoother than the text, so that the student overfits later, also where the teacher has the same
architecture ("born-again networks", Furlanello et al. 2018, 1805.04770).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpt.checkpoint import RunFolder, find_checkpoint, load_trained, read_state
from gpt.config import Config
from gpt.data.dataset import Dataset
from gpt.data.tokens import Tokens
from gpt.model import GPT
from gpt.system.device import Compute, require_memory, to_device
from gpt.system.environment import expand_home
from gpt.system.errors import CheckpointError
from gpt.system.progress import Report, counted, silent
from gpt.training.loss import Batch
from gpt.training.objective import StepBatch
from gpt.training.training_state import TrainingState


def resolve_teacher(config: Config, runs: Path) -> Path | None:
    """Return the best checkpoint of the run that `train.teacher` names; CheckpointError: there is no finished one."""
    if config.train.teacher is None:
        return None
    try:
        folder = find_checkpoint(expand_home(config.train.teacher, "train.teacher"), runs)
    except CheckpointError as error:
        raise CheckpointError(f"train.teacher: {error}") from None
    run = RunFolder(folder.parent.parent)
    existing, last = run.config(), run.pointed("last")
    if existing is None or last is None:
        raise CheckpointError(f"train.teacher is {folder}, which is not a checkpoint of a run")
    if not TrainingState.from_dict(read_state(last)).is_over(existing.train):
        raise CheckpointError(f"train.teacher is {folder}, whose run is not finished; finish it with --resume auto")
    return folder


def require_probabilities_memory(dataset: Dataset, config: Config) -> None:
    """Raise DeviceError unless there is memory for the probabilities over the training split."""
    ids = config.model.vocab_size or dataset.tokenizer.vocab_size
    needed = len(dataset.train) * ids * torch.float16.itemsize
    remedy = "the corpus or its vocabulary, or leave out train.teacher"
    require_memory(needed, "the teacher's probabilities", remedy, torch.device("cpu"))


@dataclass(frozen=True)
class Teacher:
    """The teacher probabilities of the training split: (N, V) float16, of the token after each of N positions."""

    probabilities: Tensor

    def with_soft_targets(self, batch: Batch, starts: Tensor) -> StepBatch:
        """Add the predictions, (B, T, V), to a batch of windows that begin at `starts`, (B,)."""
        return (*batch, self.probabilities[starts[:, None] + torch.arange(batch[0].size(1))])


def load_teacher(
    folder: Path,
    config: Config,
    dataset: Dataset,
    compute: Compute,
    accelerate: Callable[[GPT], object],
    report: Report,
) -> Teacher:
    """Let the teacher of a checkpoint, which `accelerate` makes as fast as the student, predict the training split.

    Raises:
        CheckpointError: it cannot be read, or has another vocabulary than the student, whose `config` is given.
        DataError: the text is shorter than its window.
    """
    teacher = load_trained(folder, folder.parent, compute.device, report=report)
    has_same_ids = teacher.model.vocab_size == config.model.vocab_size
    if not has_same_ids or teacher.tokenizer.to_dict() != dataset.tokenizer.to_dict():
        raise CheckpointError(f"train.teacher is {folder}, which has another vocabulary than this run")
    dataset.check_length(teacher.model.config.block_size)
    report(f"{folder} predicts the training split")
    accelerate(teacher.model)
    temperature = teacher.config.train.logit_temperature
    return Teacher(predict(teacher.model, dataset.train, config.train.batch_size, compute, report, temperature))


@torch.no_grad()
def predict(
    model: GPT, tokens: Tokens, batch_size: int, compute: Compute, report: Report = silent, temperature: float = 1.0
) -> Tensor:
    """Return the probabilities of the token after each of N positions, (N, V) float16, in adjacent windows.

    The last window begins so that it is full, and predicts again what it shares with the one before. The temperature
    divides the logits, as in the teacher's training and in that of its student. The model is in eval mode.
    """
    length, ids = model.config.block_size, model.config.vocab_size
    assert ids is not None
    probabilities = torch.empty(len(tokens), ids, dtype=torch.float16)
    starts = np.minimum(np.arange(0, len(tokens), length), len(tokens) - length)
    with counted(report, "predicting the training split", len(starts), "windows") as advance:
        for batch in np.split(starts, range(batch_size, len(starts), batch_size)):
            inputs = torch.from_numpy(np.asarray(tokens[batch[:, None] + np.arange(length)]).astype(np.int64))
            with compute.allow_tf32(), compute.autocast():
                logits = model(to_device(inputs, compute.device))
            for start, window in zip(batch, (logits.float() / temperature).softmax(-1).half().cpu(), strict=True):
                probabilities[start : start + length] = window
            advance(len(batch))
    return probabilities
