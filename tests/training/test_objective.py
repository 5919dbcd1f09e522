"""What a step minimizes, against its definition.

Short sequences, and a teacher that a run learns from.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import TrainConfig
from gpt.data.batches import BatchSampler, MicroBatches, StepBatch, read_windows
from gpt.data.tokens import IGNORE
from gpt.system.device import Compute
from gpt.system.errors import CheckpointError, ConfigError
from gpt.training.distillation import SoftTargets, predict
from gpt.training.objective import LOSS_TERMS, TEACHER, Objective, build_objective
from gpt.training.signals import Interrupted
from tiny import sharp_model
from training.sessions import same, stopped_after, weights
from training.sessions import start_session as start

COMPUTE = Compute(torch.device("cpu"), torch.float32)
INPUTS, TARGETS = torch.randint(7, (2, 2, 5), generator=torch.Generator().manual_seed(0))
TARGETS[0, 3] = IGNORE
TOKENS = (np.arange(300) ** 2 % 23).astype(np.uint16)


class Table(nn.Module):
    """A model whose parameters are its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(2)))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits


def summed(logits: Tensor, ahead: int = 0) -> Tensor:
    """Sum the cross-entropy of the tokens after the next ones, position by position."""
    pairs = [
        (logits[row, t], int(TARGETS[row, t + ahead])) for row in range(2) for t in range(5 - ahead)
    ]
    return sum(
        (-at.log_softmax(-1)[target] for at, target in pairs if target != IGNORE), torch.zeros(())
    )


@pytest.mark.parametrize(
    ("objective", "step", "share"),
    [
        (Objective(), 0, 0.0),
        (Objective(logit_temperature=0.8), 0, 0.0),
        *(
            (Objective(mtp_weights=(0.5, 0.25), mtp_steps=20), step, max(0, 1 - step / 20))
            for step in (0, 15, 20, 29)
        ),
        # Tokens are predicted further ahead than the sequence is long.
        (
            Objective(mtp_weights=(1.0,) * 6, mtp_steps=1),
            0,
            1.0,
        ),
        *((Objective(teacher_weight=weight), 0, 0.0) for weight in (0.25, 1.0)),
        (Objective(0.8, (0.5,), 20, 0.4), 10, 0.5),
        (Objective(0.8, terms=(("z_loss", 0.3),)), 0, 0.0),
    ],
)
def test_objective_and_its_gradient_follow_the_definition(
    objective: Objective, step: int, share: float
) -> None:
    model = Table()
    certainty = objective.teacher_weight
    teacher = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(3)).softmax(-1).half()
    logits = model.logits / objective.logit_temperature
    further = sum(
        (weight * summed(logits, k) for k, weight in enumerate(objective.mtp_weights, 1)),
        torch.zeros(()),
    )
    divergence = -(teacher * logits.log_softmax(-1)).sum()
    expected = (1 - certainty) * (summed(logits) + share * further) + certainty * divergence
    squares = logits.logsumexp(-1)[TARGETS != IGNORE].square().sum()
    expected = expected + sum(weight * squares for _, weight in objective.terms)
    value, loss, terms = objective(
        model,
        StepBatch(INPUTS, TARGETS, {TEACHER: teacher} if certainty else {}),
        COMPUTE,
        objective.mtp_scale(step),
    )
    torch.testing.assert_close((value, loss), (expected, summed(logits.detach())))
    torch.testing.assert_close(
        *(torch.autograd.grad(each, model.logits) for each in (value, expected))
    )
    assert not loss.requires_grad
    assert {name: float(term) for name, term in terms.items()} == {
        name: pytest.approx(squares.item()) for name, _ in objective.terms
    }


def test_objective_looks_ahead_in_two_thirds_of_the_steps() -> None:
    train = TrainConfig(
        logit_temperature=0.9, mtp_weights=(0.5,), max_steps=300, teacher_weight=0.2
    )
    assert build_objective(train) == Objective(0.9, (0.5,), 200, 0.2, ())


def log_z(logits: Tensor, targets: Tensor) -> Tensor:
    """Return log Z at every position, (B, T)."""
    return logits.logsumexp(-1)


def test_terms_are_logged_as_means_over_the_tokens_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[float] = []

    def measured(logits: Tensor, targets: Tensor) -> Tensor:
        sums.append(log_z(logits, targets).sum().item())
        return log_z(logits, targets).sum()

    monkeypatch.setitem(LOSS_TERMS, "log_z", measured)
    keys = (
        "train.loss_terms={log_z: 0.5, z_loss: 0.1}",
        "train.max_steps=2",
        "train.grad_accum_steps=2",
    )
    trainer = start(tmp_path, *keys, "train.log_interval=1")
    sums.clear()
    trainer.run()
    rows = [json.loads(line) for line in trainer.run_folder.metrics.read_text().splitlines()]
    logged = [row for row in rows if "train/loss" in row]
    tokens = trainer.config.train.sequences * trainer.config.model.block_size
    expected = [pytest.approx((sums[i] + sums[i + 1]) / tokens) for i in (0, 2)]
    assert [row["train/log_z"] for row in logged] == expected
    assert all(row["train/z_loss"] >= row["train/log_z"] ** 2 for row in logged)


@pytest.mark.parametrize(
    ("name", "term", "message"),
    [
        (
            "mine",
            lambda *given: log_z(*given).mean(),
            "mine is .* for a batch and .* for one twice as large",
        ),
        (
            "mine",
            lambda *given: log_z(*given).sum(1).mean(),
            "mine is .* for a batch and .* for one twice as large",
        ),
        (
            "mine",
            lambda *given: log_z(*given).sum().sqrt(),
            "mine is .* for a batch and .* for one twice as large",
        ),
        (
            "mine",
            lambda *given: log_z(*given) * math.nan,
            r"mine returns a tensor of shape \(1, 16\); return its sum",
        ),
        ("mine", lambda *given: log_z(*given).sum() * math.nan, "mine is nan for a batch"),
        (
            "mine",
            lambda *given: log_z(*given).sum((0, 1), keepdim=True),
            r"mine returns a tensor of shape \(1, 1\)",
        ),
        (
            "mine",
            lambda *given: log_z(*given).sum().item(),
            "mine returns a float; return a tensor of one number",
        ),
        ("mine", lambda *given: log_z(*given).sum().detach(), "mine has no gradient"),
        (
            "mine",
            lambda logits: logits.sum(),
            "mine raises TypeError: .* takes 1 positional argument but 2",
        ),
        (
            "grad_norm",
            lambda *given: log_z(*given).sum(),
            "grad_norm would be logged as train/grad_norm",
        ),
    ],
)
def test_term_that_is_no_sum_is_refused_before_a_training_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    term: Callable[..., Any],
    message: str,
) -> None:
    monkeypatch.setitem(LOSS_TERMS, name, term)
    with pytest.raises(ConfigError, match=f"^train.loss_terms: {message}[^\n]*$"):
        start(tmp_path, f"train.loss_terms={{{name}: 0.1}}")
    assert not list(tmp_path.glob("runs/[!.]*"))


@pytest.mark.parametrize(
    ("length", "rows"), [(2, [1, 2, 5, 6]), (8, None), (8, [1, 2, 5, 6]), (16, None)]
)
def test_micro_batches_cut_windows_along_with_their_soft_targets(
    length: int, rows: list[int] | None
) -> None:
    following = torch.as_tensor(TOKENS.astype("int64")).roll(-1)
    soft = SoftTargets(F.one_hot(following, 23).half())
    which = None if rows is None else torch.tensor(rows)
    batches = MicroBatches(BatchSampler(TOKENS, 16, seed=0), 8, 2, which, {TEACHER: soft.of})
    parts = batches.next(length)
    assert len(parts) == (4 if rows is None else 2)
    assert {part.shape[:2] for batch in parts for part in batch.tensors} == {
        (2 * 16 // length, length)
    }
    inputs = torch.cat([part.inputs for part in parts])
    targets = torch.cat([part.targets for part in parts])
    soft_targets = torch.cat([part.fields[TEACHER] for part in parts])
    starts = batches.sampler.starts if which is None else batches.sampler.starts[which]
    expected = read_windows(
        TOKENS, (starts[:, None] + torch.arange(0, 16, length)).flatten(), length
    )
    assert torch.equal(inputs, expected[0])
    assert torch.equal(targets, expected[1])
    assert torch.equal(soft_targets.argmax(-1), targets)
    assert batches.sampler.starts.shape == (8,)  # of whole windows, in all processes


def test_run_begins_with_short_sequences(tmp_path: Path) -> None:
    keys = (
        "train.length_warmup=[0.5]",
        "train.mtp_weights=[0.5]",
        "train.max_steps=4",
        "train.grad_accum_steps=2",
    )
    trainer = start(tmp_path, *keys)
    trainer.stepper.objective = objective = Mock(wraps=trainer.stepper.objective)
    trainer.run()
    found = [(call.args[3], *call.args[1].inputs.shape) for call in objective.call_args_list]
    assert found == [
        step for step in [(1.0, 8, 8), (0.5, 8, 8), (None, 4, 16), (None, 4, 16)] for _ in range(2)
    ]


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs teacher and student, and what cannot teach."""
    folder = tmp_path_factory.mktemp("school")
    teacher = start(folder, "run.name=run", "run.seed=3", "train.logit_temperature=0.5")
    teacher.run()
    runs = (folder / "runs/run").rename(folder / "runs/teacher").parent
    shutil.copytree(runs / "teacher/checkpoints/step-000006", runs / "model")
    shutil.copytree(runs / "teacher", runs / "stopped")
    (runs / "stopped/last.json").write_text(
        json.dumps({"checkpoint": "checkpoints/step-000003", "step": 3})
    )
    return folder


def taught(school: Path, name: str = "teacher") -> tuple[str, str]:
    return f"train.teacher={school / 'runs' / name}", "train.teacher_weight=0.4"


@pytest.mark.parametrize(("count", "temperature"), [(16, 1.0), (50, 0.7), (64, 1.0)])
def test_teacher_predicts_every_position_once(count: int, temperature: float) -> None:
    model = sharp_model()
    tokens = np.arange(count) * 7 % 23
    found = predict(
        model, tokens.astype(np.uint16), batch_size=2, compute=COMPUTE, temperature=temperature
    )
    expected = torch.empty(count, 23)
    for begin in (*range(0, count - 15, 16), count - 16):
        with torch.no_grad():
            logits = model(torch.as_tensor(tokens[None, begin : begin + 16]))[0]
        expected[begin : begin + 16] = (logits / temperature).softmax(-1)
    torch.testing.assert_close(found.float(), expected, atol=1e-3, rtol=1e-3)


def test_student_learns_from_its_teacher_and_resumes_exactly(school: Path, tmp_path: Path) -> None:
    with patch("gpt.training.distillation.predict", wraps=predict) as predicted:
        whole = start(tmp_path / "whole", *taught(school))
    assert predicted.call_args.args[-1] == 0.5  # the temperature of the teacher's training
    whole.run()
    alone = start(tmp_path / "alone")
    alone.run()
    assert not same(weights(whole.model), weights(alone.model))
    with stopped_after(4), pytest.raises(Interrupted):
        start(tmp_path / "stopped", *taught(school)).run()
    resumed = start(tmp_path / "stopped", *taught(school), resume="auto")
    resumed.run()
    assert same(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("nowhere", [], "train.teacher: .*nowhere: no such run or checkpoint"),
        ("model", [], "model, which is not a checkpoint of a run"),
        ("stopped", [], "step-000006, whose run is not finished; finish it with --resume auto"),
        (
            "teacher",
            ["model.vocab_size=40"],
            "step-000006, which has another vocabulary than this run",
        ),
        (
            "teacher",
            ["data.path=PLACE/other.txt"],
            "step-000006, which has another vocabulary than this run",
        ),
    ],
)
def test_unusable_teacher_is_refused(
    school: Path, tmp_path: Path, name: str, options: list[str], reason: str
) -> None:
    (school / "other.txt").write_text("quite another alphabet\n" * 40, encoding="utf-8")
    options = [option.replace("PLACE", str(school)) for option in options]
    with pytest.raises(CheckpointError, match=reason):
        start(tmp_path, *taught(school, name), *options)
    assert {path.name for path in school.glob("runs/[!.]*")} == {"teacher", "model", "stopped"}
    assert not list(tmp_path.glob("runs/[!.]*"))
