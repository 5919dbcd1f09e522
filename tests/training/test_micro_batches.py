from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gpt.config import TrainConfig
from gpt.data.batches import BatchSampler
from gpt.distributed import World
from gpt.training.micro_batches import MicroBatches
from gpt.training.objective import TaughtBatch
from gpt.training.teacher import Teacher

from .conftest import Start

TOKENS = (np.arange(90) % 23).astype(np.uint16)
TRAIN = TrainConfig(batch_size=3, grad_accum_steps=2)


def batches(teacher: Teacher | None = None) -> MicroBatches:
    return MicroBatches(BatchSampler(TOKENS, 16, seed=0), TRAIN, World(), teacher)


@pytest.mark.parametrize("length", [16, 8, 2])
def test_shorter_sequences_are_the_windows_cut(length: int) -> None:
    whole, cut = batches().next(16), batches().next(length)
    assert len(cut) == 2
    for (inputs, targets), (short, following) in zip(whole, cut, strict=True):  # type: ignore[misc]
        assert short.shape == following.shape == (3 * 16 // length, length)
        assert torch.equal(short.flatten(), inputs.flatten())
        assert torch.equal(following.flatten(), targets.flatten())


def test_a_teachers_predictions_are_cut_alike() -> None:
    following = torch.as_tensor(np.roll(TOKENS, -1).astype(np.int64))
    for batch in batches(Teacher(F.one_hot(following, 23).half())).next(4):
        assert isinstance(batch, TaughtBatch)
        assert batch.probabilities.shape == (12, 4, 23)
        assert torch.equal(batch.probabilities.argmax(-1), batch.targets)


def test_the_sequences_of_a_training_grow(start: Start, tmp_path: Path) -> None:
    trainer = start(tmp_path, "train.first_block_size=4", "train.eval_first=false", "train.sample_tokens=0")
    shapes: list[tuple[int, ...]] = []
    trainer.model.register_forward_pre_hook(
        lambda model, inputs: shapes.append(tuple(inputs[0].shape)) if model.training else None
    )
    trainer.run()
    assert shapes == [(16, 4)] * 3 + [(8, 8)] * 2 + [(4, 16)]
