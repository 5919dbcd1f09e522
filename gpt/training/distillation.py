"""Distillation: a run learns from its text, and from what a finished run, its teacher, predicts.

The predictions are smoother than the text, so that the student overfits later, also where the
teacher has the same architecture ("born-again networks", Furlanello et al. 2018, 1805.04770).

A training meets distillation in two places: `teacher_fields` adds the teacher's probabilities to
each batch, as a field, and the objective compares those of the student with them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpt.checkpoint import RunFolder, find_checkpoint, load_trained, read_state
from gpt.config import Config
from gpt.data.batches import Field
from gpt.data.dataset import Dataset
from gpt.data.tokens import Tokens
from gpt.model import GPT
from gpt.system.device import Compute, require_memory, to_device
from gpt.system.distributed import World
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import CheckpointError
from gpt.system.progress import Report, progress_bar, silent
from gpt.training.acceleration import use_native_kernels
from gpt.training.objective import TEACHER
from gpt.training.training_state import TrainingState


@dataclass(frozen=True, repr=False)
class SoftTargets:
    """What a teacher predicts for a split.

    Attributes:
        probabilities: those of the token after each of N positions, (N, V). They are float16 to
            save memory, since the tensor is as large as the split times the vocabulary.
    """

    probabilities: Tensor

    def of(self, inputs: Tensor, targets: Tensor, starts: Tensor) -> Tensor:
        """Return the probabilities (B, T, V) of windows that begin at `starts`, (B,)."""
        positions = starts[:, None] + torch.arange(inputs.size(1))  # (B, T)
        return self.probabilities[positions]


def teacher_fields(
    config: Config,
    dataset: Dataset,
    compute: Compute,
    settings: Settings,
    world: World,
    report: Report,
) -> dict[str, Field]:
    """Return the field of a batch that has the predictions of `train.teacher`.

    The teacher predicts the whole training split here: each position then costs one pass, however
    often the student learns it, and the teacher itself is not kept in memory. Without a teacher the
    batches have no such field.

    Raises:
        CheckpointError: there is no such run, it is not finished, or it has another vocabulary.
        DataError: the text is shorter than the teacher's window.
        DeviceError: there is no memory for the probabilities.
    """
    if config.train.teacher is None:
        return {}
    name = config.train.teacher
    runs = expand_home(config.run.dir, "run.dir")
    folder = world.rank_zero(lambda: find_teacher(name, runs))
    with world.together():
        _require_memory(dataset, config)
        # The folder is found as it is, so that the second argument, where names are looked for, has
        # no effect.
        teacher = load_trained(folder, folder.parent, compute.device, report=report)
        has_same_ids = teacher.model.vocab_size == config.model.vocab_size
        if not has_same_ids or teacher.tokenizer.to_dict() != dataset.tokenizer.to_dict():
            raise CheckpointError(
                f"train.teacher is {folder}, which has another vocabulary than this run"
            )
        dataset.check_length(teacher.model.config.block_size)
        report(f"{folder} predicts the training split")
        # Silent, since the student will report the same about kernels.
        use_native_kernels(teacher.model, config.run, compute, settings, silent)
        # The teacher's logits mean probabilities only at the temperature at which it was trained.
        temperature = teacher.config.train.logit_temperature
        batch_size = config.train.batch_size
        probabilities = predict(
            teacher.model, dataset.train, batch_size, compute, report, temperature
        )
    return {TEACHER: SoftTargets(probabilities).of}


def find_teacher(name: str, runs: Path) -> Path:
    """Return the best checkpoint of a finished run; CheckpointError: there is none of that name."""
    try:
        folder = find_checkpoint(expand_home(name, "train.teacher"), runs)
    except CheckpointError as error:
        raise CheckpointError(f"train.teacher: {error}") from None
    run = RunFolder(folder.parent.parent)  # a checkpoint is runs/NAME/checkpoints/step-000250
    config = run.config()
    last = run.pointed("last")
    if config is None or last is None:
        raise CheckpointError(f"train.teacher is {folder}, which is not a checkpoint of a run")
    if not TrainingState.from_dict(read_state(last)).is_over(config.train):
        raise CheckpointError(
            f"train.teacher is {folder}, whose run is not finished; finish it with --resume auto"
        )
    return folder


def _require_memory(dataset: Dataset, config: Config) -> None:
    """Raise DeviceError unless there is memory for the probabilities over the training split."""
    vocab_size = config.model.vocab_size or dataset.tokenizer.vocab_size
    num_bytes = len(dataset.train) * vocab_size * torch.float16.itemsize
    remedy = "the corpus or its vocabulary, or leave out train.teacher"
    # The probabilities stay on the CPU, whatever the device of the run: a step needs few of them.
    require_memory(num_bytes, "the teacher's probabilities", remedy, torch.device("cpu"))


@torch.no_grad()
def predict(
    model: GPT,
    tokens: Tokens,
    batch_size: int,
    compute: Compute,
    report: Report = silent,
    temperature: float = 1.0,
) -> Tensor:
    """Return the probabilities of the token after each of N positions, (N, V) float16.

    The windows are adjacent. The last one begins early enough to be full, and predicts again the
    positions that it shares with the window before.

    Args:
        model: the teacher, in eval mode.
        temperature: divides the logits, as in the training of the teacher.
    """
    length = model.config.block_size
    vocab_size = model.config.vocab_size
    assert vocab_size is not None
    probabilities = torch.empty(len(tokens), vocab_size, dtype=torch.float16)
    # where each window begins; the last one at the latest where it is full
    starts = np.minimum(np.arange(0, len(tokens), length), len(tokens) - length)
    batches = np.split(starts, range(batch_size, len(starts), batch_size))
    with progress_bar(report, "predicting the training split", len(starts), "windows") as advance:
        for batch in batches:  # (B,)
            windows = tokens[batch[:, None] + np.arange(length)]  # (B, T)
            inputs = torch.from_numpy(np.asarray(windows).astype(np.int64))
            with compute.allow_tf32(), compute.autocast():
                logits = model(to_device(inputs, compute.device))  # (B, T, V)
            predicted = (logits.float() / temperature).softmax(-1).half().cpu()
            for start, window in zip(batch, predicted, strict=True):  # window is (T, V)
                probabilities[start : start + length] = window
            advance(len(batch))
    return probabilities
