"""Micro-batches of windows that are cut into short sequences."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gpt.accounting.flops import training_flops
from gpt.data.batches import BatchSampler, MicroBatches, read_windows
from gpt.model import GPT
from gpt.training.distillation import Teacher
from gpt.training.step import Stepper

from .conftest import Start

TOKENS = (torch.arange(300) ** 2 % 23).numpy().astype("uint16")


def sequences_of(batches: MicroBatches, length: int) -> tuple[Tensor, Tensor]:
    """Sequences of so many tokens, read one after another from the last windows, whose length is 16."""
    starts = batches.sampler.starts if batches.rows is None else batches.sampler.starts[batches.rows]
    return read_windows(TOKENS, (starts[:, None] + torch.arange(0, 16, length)).flatten(), length)


@pytest.mark.parametrize("rows", [None, torch.tensor([1, 2, 5, 6])])
@pytest.mark.parametrize("length", [2, 8, 16])
def test_windows_are_cut_along_time_into_the_sequences_that_begin_there(length: int, rows: Tensor | None) -> None:
    batches = MicroBatches(BatchSampler(TOKENS, 16, seed=0), sequences=8, size=2, rows=rows)
    parts = batches.next(length)
    assert len(parts) == (4 if rows is None else 2)
    assert {part.shape for batch in parts for part in batch} == {(2 * 16 // length, length)}
    for ours, theirs in zip(map(torch.cat, zip(*parts, strict=True)), sequences_of(batches, length), strict=True):
        assert torch.equal(ours, theirs)
    assert batches.sampler.starts.shape == (8,)  # of whole windows, in all processes


def test_what_a_teacher_predicts_stays_with_its_positions() -> None:
    following = torch.as_tensor(TOKENS.astype("int64")).roll(-1)
    teacher = Teacher(nn.functional.one_hot(following, 23).half())
    batches = MicroBatches(BatchSampler(TOKENS, 16, seed=0), 4, 2, complete=teacher.with_soft_targets)
    for _, targets, soft_targets in batches.next(8):
        assert targets.shape == (4, 8)
        assert torch.equal(soft_targets.argmax(-1), targets)


def test_a_step_has_the_gradients_of_a_batch_of_the_short_sequences(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(tmp_path, "train.length_warmup=[0.5]", "train.max_steps=4", "optim.grad_clip=0")
    model, found = GPT(trainer.config.model), []
    gradients = Stepper.gradients

    def compared(stepper: Stepper, micro_batches: list[tuple[Tensor, ...]], step: int) -> Tensor:
        model.load_state_dict(stepper.model.state_dict())
        model.zero_grad()
        length = 8 if trainer.state.step < 2 else 16
        starts = (trainer.batches.sampler.starts[:, None] + torch.arange(0, 16, length)).flatten()
        inputs, targets = read_windows(trainer.dataset.train, starts, length)
        expected = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        expected.backward()
        loss = gradients(stepper, micro_batches, step)
        torch.testing.assert_close(loss, expected.detach())
        for ours, theirs in zip(stepper.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7)
        found.append(len(inputs))
        return loss

    monkeypatch.setattr(Stepper, "gradients", compared)
    trainer.run()
    assert found == [8, 8, 4, 4]
    assert trainer.meter.flops_per_step(8) == training_flops(trainer.config.model, 8, 8)
