"""Distillation: a run learns from its text, and from what a finished run, its teacher, predicts.

The predictions are smoother than the text, so that the student overfits later, even if the teacher
has the same architecture ("born-again networks", Furlanello et al. 2018, 1805.04770).

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
from gpt.native.training.native_model import NativeModel
from gpt.system.device import Compute, require_memory, to_device
from gpt.system.distributed import World
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import CheckpointError
from gpt.system.progress import Report, progress_bar, silent
from gpt.training.acceleration import load_wanted_kernels
from gpt.training.objective import TEACHER
from gpt.training.training_state import TrainingState


@dataclass(frozen=True, repr=False)
class SoftTargets:
    """What a teacher predicts for a split.

    Attributes:
        probabilities: probabilities of the token after each of N positions, (N, V). They are
            float16 to save memory, since the tensor is as large as the split times the vocabulary.
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
    """Return the field of a batch with the predictions of `train.teacher`, by the field's name.

    The teacher predicts the whole training split before the training begins. So it predicts each
    position only once, even if the student reads the text many times, and the teacher itself need
    not stay in memory. Without `train.teacher` there are no fields.

    Raises:
        CheckpointError: there is no such run, or the run is not finished or has another vocabulary.
        DataError: the text is shorter than the teacher's window.
        DeviceError: there is too little memory for the probabilities.
    """
    if config.train.teacher is None:
        return {}
    name = config.train.teacher
    runs = expand_home(config.run.dir, "run.dir")
    folder = world.rank_zero(lambda: find_teacher(name, runs))
    # If one of several processes fails here, `together` ends them all.
    with world.together():
        _require_memory(dataset, config)
        # The second argument is where runs are looked for by name; `folder` is a path that exists.
        teacher = load_trained(folder, folder.parent, compute.device, report=report)
        has_same_size = teacher.model.vocab_size == config.model.vocab_size
        has_same_tokenizer = teacher.tokenizer.to_dict() == dataset.tokenizer.to_dict()
        if not has_same_size or not has_same_tokenizer:
            raise CheckpointError(
                f"train.teacher is {folder}, which has another vocabulary than this run"
            )
        dataset.check_length(teacher.model.config.block_size)
        report(f"{folder} predicts the training split")
        # `silent`: the student reports which kernels it uses, and they are the same.
        native = load_wanted_kernels(teacher.model, config.run, compute, settings, silent)
        # In its training the teacher's logits were divided by this number. Only with the same one
        # does the softmax give the probabilities that the teacher has learned.
        temperature = teacher.config.train.logit_temperature
        batch_size = config.train.batch_size
        model = teacher.model if native is None else native
        probabilities = predict(model, dataset.train, batch_size, compute, report, temperature)
    return {TEACHER: SoftTargets(probabilities).of}


def find_teacher(name: str, runs: Path) -> Path:
    """Return the best checkpoint of a finished run.

    Raises:
        CheckpointError: there is no run of that name, or the run is not finished.
    """
    try:
        folder = find_checkpoint(expand_home(name, "train.teacher"), runs)
    except CheckpointError as error:
        raise CheckpointError(f"train.teacher: {error}") from None
    # The folder of a checkpoint is runs/NAME/checkpoints/step-000250, and that of the run is two
    # levels above it.
    run = RunFolder(folder.parent.parent)
    config = run.config()
    last_checkpoint = run.pointed("last")
    if config is None or last_checkpoint is None:
        raise CheckpointError(f"train.teacher is {folder}, which is not a checkpoint of a run")
    # `folder` is the best checkpoint, which may be older than the last one. Only the last one shows
    # whether the run is finished.
    last_state = TrainingState.from_dict(read_state(last_checkpoint))
    if not last_state.is_over(config.train):
        raise CheckpointError(
            f"train.teacher is {folder}, whose run is not finished; finish it with --resume auto"
        )
    return folder


def _require_memory(dataset: Dataset, config: Config) -> None:
    """Raise DeviceError unless there is memory for the teacher's probabilities."""
    vocab_size = config.model.vocab_size or dataset.tokenizer.vocab_size
    num_bytes = len(dataset.train) * vocab_size * torch.float16.itemsize
    # `require_memory` writes "lower" before the remedy.
    remedy = "the corpus or its vocabulary, or leave out train.teacher"
    # The probabilities stay on the CPU, since a step needs only a few of them on its device.
    require_memory(num_bytes, "the teacher's probabilities", remedy, torch.device("cpu"))


@torch.no_grad()
def predict(
    model: GPT | NativeModel,
    tokens: Tokens,
    batch_size: int,
    compute: Compute,
    report: Report = silent,
    temperature: float = 1.0,
) -> Tensor:
    """Return the probabilities of the token after each of N positions, (N, V) float16.

    The windows are adjacent. Only the last window overlaps the one before it, since it begins early
    enough to be full.

    Args:
        model: the teacher, in eval mode.
        tokens: the N tokens of the split.
        batch_size: number of windows that are predicted together.
        temperature: divides the logits, as it did in the training of the teacher.
    """
    length = model.config.block_size
    vocab_size = model.config.vocab_size
    assert vocab_size is not None
    probabilities = torch.empty(len(tokens), vocab_size, dtype=torch.float16)
    last_start = len(tokens) - length  # the last position at which a full window can begin
    adjacent_starts = np.arange(0, len(tokens), length)
    starts = np.minimum(adjacent_starts, last_start)
    # `np.split` takes the positions at which a new batch of starts begins.
    batches = np.split(starts, range(batch_size, len(starts), batch_size))
    with progress_bar(report, "predicting the training split", len(starts), "windows") as advance:
        for batch_starts in batches:  # (B,)
            windows = tokens[batch_starts[:, None] + np.arange(length)]  # (B, T)
            inputs = torch.from_numpy(np.asarray(windows).astype(np.int64))
            with compute.allow_tf32(), compute.autocast():
                logits = model(to_device(inputs, compute.device))  # (B, T, V)
            predictions = (logits.float() / temperature).softmax(-1).half().cpu()
            for start, prediction in zip(batch_starts, predictions, strict=True):  # (T, V)
                probabilities[start : start + length] = prediction
            advance(len(batch_starts))
    return probabilities
