"""Distillation: what a teacher predicts, and the run that learns it."""

import gc
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from gpt.checkpoint import Checkpoint, read_checkpoint
from gpt.cli import train
from gpt.data.batches import BatchSampler
from gpt.device import Compute
from gpt.system.errors import DeviceError
from gpt.training import plan
from gpt.training.distillation import Teacher, predict, require_probabilities_memory
from gpt.training.trainer import Trainer
from tiny import sharp_model

from .conftest import Start

COMPUTE = Compute(torch.device("cpu"), torch.float32)
TAUGHT = ["train.teacher=runs/teacher", "train.teacher_weight=0.4"]


def run(*options: str) -> int:
    return train.main(["--config", "tiny.yaml", *options])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(run / "checkpoints" / "step-000006").model


@pytest.fixture
def taught(workplace: Path) -> Path:
    """A folder with the finished run runs/teacher."""
    assert run("run.name=teacher", "run.seed=3") == 0
    return workplace


@pytest.mark.parametrize(("count", "temperature"), [(16, 1.0), (50, 0.7), (64, 1.0)])
def test_every_position_is_predicted_once_in_adjacent_windows(count: int, temperature: float) -> None:
    model, tokens = sharp_model(), np.arange(count) * 7 % 23
    found = predict(model, tokens.astype(np.uint16), batch_size=2, compute=COMPUTE, temperature=temperature)
    assert found.shape == (count, 23)
    starts = [*range(0, count - 15, 16)] + ([count - 16] if count % 16 else [])
    for start in starts:
        with torch.no_grad():
            logits = model(torch.as_tensor(tokens[None, start : start + 16]))[0]
        expected = (logits / temperature).softmax(-1)
        ours = found[start : start + 16] if start == starts[-1] else found[start : min(start + 16, starts[-1])]
        torch.testing.assert_close(ours.float(), expected[: len(ours)], atol=1e-3, rtol=1e-3)


def test_a_batch_gets_the_predictions_for_its_own_positions() -> None:
    tokens = np.arange(40) % 23
    teacher = Teacher(torch.nn.functional.one_hot(torch.as_tensor(np.append(tokens[1:], 0)), 23).half())
    sampler = BatchSampler(tokens.astype(np.uint16), 16, seed=0)
    _, targets, probabilities = teacher.with_soft_targets(sampler.get_batch(3), sampler.starts)
    assert torch.equal(probabilities.argmax(-1), targets)


def test_probabilities_that_do_not_fit_into_memory_are_refused(start: Start, tmp_path: Path) -> None:
    trainer = start(tmp_path)
    with (
        patch("gpt.device.available_bytes", lambda device: 10),
        pytest.raises(DeviceError, match=r"teacher's probabilities.*train\.teacher"),
    ):
        require_probabilities_memory(trainer.dataset, trainer.config)


def test_a_run_learns_from_what_the_best_checkpoint_of_another_predicts(taught: Path) -> None:
    assert run(*TAUGHT) == 0
    assert run("run.name=alone") == 0
    learned, alone = weights(taught / "runs/tiny"), weights(taught / "runs/alone")
    assert not torch.equal(learned["wte.weight"], alone["wte.weight"])


def test_a_run_with_a_teacher_is_planned_once(taught: Path) -> None:
    counted = ("prepare", "find_resume_point", "check_parallel")
    with ExitStack() as stack:
        calls = [stack.enter_context(patch.object(plan, name, wraps=getattr(plan, name))) for name in counted]
        assert run(*TAUGHT) == 0
    assert [call.call_count for call in calls] == [1, 1, 1]


def test_a_teacher_predicts_at_the_temperature_of_its_training(workplace: Path) -> None:
    assert run("run.name=teacher", "train.temperature=0.5") == 0
    with patch("gpt.training.distillation.predict", wraps=predict) as predicted:
        assert run(*TAUGHT) == 0
    assert predicted.call_args.args[-1] == 0.5


def test_a_student_that_was_stopped_ends_as_one_that_was_not(taught: Path) -> None:
    assert run("run.name=whole", *TAUGHT) == 0
    step = Trainer._train_one_step

    def stopping(trainer: Trainer) -> None:
        step(trainer)
        if trainer.state.step == 4:
            signal.raise_signal(signal.SIGTERM)

    with patch.object(Trainer, "_train_one_step", stopping):
        assert run(*TAUGHT) == 143
    assert run(*TAUGHT, "--resume", "auto") == 0
    found, whole = weights(taught / "runs/tiny"), weights(taught / "runs/whole")
    assert all(torch.equal(found[key], whole[key]) for key in whole)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["train.teacher=runs/nowhere"], "train.teacher: runs/nowhere: no such run or checkpoint"),
        (["train.teacher=runs/model"], "train.teacher is runs/model, which is not a checkpoint of a run"),
        (["train.teacher=runs/stopped"], "step-000006, whose run is not finished; finish it with --resume auto"),
        (
            ["train.teacher=runs/teacher", "model.vocab_size=40"],
            "step-000006, which has another vocabulary than this run",
        ),
        (
            ["train.teacher=runs/teacher", "data.path=other.txt"],
            "step-000006, which has another vocabulary than this run",
        ),
        (
            ["train.teacher=runs/teacher", "run.name=teacher"],
            "new run would take the place of runs/teacher;",
        ),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_in_one_line(
    taught: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    shutil.copytree(taught / "runs/teacher/checkpoints/step-000006", taught / "runs/model")
    shutil.copytree(taught / "runs/teacher", taught / "runs/stopped")
    (taught / "runs/stopped/last.json").write_text('{"checkpoint": "checkpoints/step-000003", "step": 3}')
    (taught / "other.txt").write_text("quite another alphabet\n" * 40, encoding="utf-8")
    capsys.readouterr()
    assert run(*options) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert reason in errors[0]
    assert {path.name for path in taught.glob("runs/[!.]*")} == {"teacher", "model", "stopped"}


def test_no_checkpoint_stays_in_memory_while_a_run_goes_on_from_it(workplace: Path) -> None:
    longer = ("train.max_steps=8", "--allow-config-change", "--resume", "auto")
    assert run() == 0
    step, kept = Trainer._train_one_step, []

    def found() -> list[object]:
        return [thing for thing in gc.get_objects() if type(thing) in (plan.Plan, Checkpoint)]

    # those that the tracebacks of other tests hold
    others = set(map(id, found()))

    def watched(trainer: Trainer) -> None:
        kept.extend(thing for thing in found() if id(thing) not in others)
        step(trainer)

    with patch.object(Trainer, "_train_one_step", watched):
        assert run(*longer) == 0
    assert kept == []
