"""Self-distillation: a run learns from the text, and from what a shorter run before it predicts for the text.

The teacher has the same architecture, another seed and fewer steps, and is a run of its own, beside the student's. Its
predictions are smoother than the text, so that the student overfits later ("born-again networks", Furlanello et al.
2018, 1805.04770).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gpt.checkpoint import RunFolder, find_checkpoint, load_trained
from gpt.config import Config
from gpt.config.loading import TEACHER_SUFFIX, LoadedConfig
from gpt.config.sections import SEEDS
from gpt.data.dataset import Dataset
from gpt.data.tokens import Tokens
from gpt.device import Compute, require_memory
from gpt.errors import CheckpointError
from gpt.evaluation.loss import Batch, to_device
from gpt.model import GPT
from gpt.progress import Report, counted, silent
from gpt.training.objective import StepBatch


def teacher_config(loaded: LoadedConfig) -> LoadedConfig:
    """Return the configuration of the teacher: another name, seed and length, with a schedule that fits the length."""
    config, steps = loaded.config, loaded.config.train.teacher_steps
    decay = config.optim.decay_steps
    shorter = None if decay is None else max(1, round(decay * steps / config.train.max_steps))
    run = config.run.model_copy(update={"name": loaded.teacher_name, "seed": (config.run.seed + 1) % SEEDS})
    optim = config.optim.model_copy(update={"decay_steps": shorter})
    train = config.train.model_copy(update={"max_steps": steps, "teacher_share": None})
    # not of a file: no other run's folder is said to have it
    return replace(loaded, folder=None, config=config.model_copy(update={"run": run, "optim": optim, "train": train}))


def require_probabilities_memory(dataset: Dataset, config: Config) -> None:
    """Raise DeviceError unless there is memory for the probabilities over the training split."""
    ids = config.model.vocab_size or dataset.tokenizer.vocab_size
    needed = len(dataset.train) * ids * torch.float16.itemsize
    remedy = "the corpus or its vocabulary, or leave out train.teacher_share"
    require_memory(needed, "the teacher's probabilities", remedy, torch.device("cpu"))


@dataclass(frozen=True)
class Teacher:
    """What the teacher predicts for the training split: (N, V) float16, of the token after each of N positions."""

    probabilities: Tensor

    def with_soft_targets(self, batch: Batch, starts: Tensor) -> StepBatch:
        """Add the predictions, (B, T, V), to a batch of windows that begin at `starts`, (B,)."""
        return (*batch, self.probabilities[starts[:, None] + torch.arange(batch[0].size(1))])


def load_teacher(
    run: RunFolder,
    batch_size: int,
    dataset: Dataset,
    compute: Compute,
    accelerate: Callable[[GPT], object],
    report: Report,
) -> Teacher:
    """Let the teacher of a run predict the training split.

    Args:
        run: the student's folder; the teacher's is beside it.
        accelerate: makes the teacher as fast as the student.
    """
    runs = run.path.parent
    folder = find_checkpoint(runs / f"{run.path.name}{TEACHER_SUFFIX}", runs, prefer="last")
    teacher = load_trained(folder, runs, compute.device, report=report)
    if teacher.tokenizer.to_dict() != dataset.tokenizer.to_dict():
        raise CheckpointError(
            f"{folder} was trained with another tokenizer; delete it, or choose another run.name=NAME"
        )
    report(f"{folder} predicts the training split")
    accelerate(teacher.model)
    temperature = teacher.config.train.temperature
    return Teacher(predict(teacher.model, dataset.train, batch_size, compute, report, temperature))


@torch.no_grad()
def predict(
    model: GPT, tokens: Tokens, batch_size: int, compute: Compute, report: Report = silent, temperature: float = 1.0
) -> Tensor:
    """Return the probabilities of the token after each position, (N, V) float16, in adjacent windows.

    The last window begins so that it is full, and predicts again what it shares with the one before.

    Args:
        model: in eval mode.
        tokens: N of them, at least as many as the block size.
        batch_size: windows at once.
        temperature: divides the logits, as in its training and in that of its student.
    """
    length, ids = model.config.block_size, model.config.vocab_size
    assert ids is not None
    probabilities = torch.empty(len(tokens), ids, dtype=torch.float16)
    starts = np.minimum(np.arange(0, len(tokens), length), len(tokens) - length)
    with counted(report, "predicting the training split", len(starts), "windows") as advance:
        for batch in np.split(starts, range(batch_size, len(starts), batch_size)):
            inputs = torch.from_numpy(np.asarray(tokens[batch[:, None] + np.arange(length)]).astype(np.int64))
            with compute.training_matmuls(), compute.autocast():
                logits = model(to_device(inputs, compute.device))
            for start, window in zip(batch, (logits.float() / temperature).softmax(-1).half().cpu(), strict=True):
                probabilities[start : start + length] = window
            advance(len(batch))
    return probabilities
