import errno
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import find_checkpoint, read_checkpoint
from gpt.evaluation.loss import Evaluation
from gpt.system.errors import CheckpointError, GPTError, NonFiniteError
from gpt.training.monitor import Monitor, MonitorGroup
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from programs import full_disk
from training.sessions import Start, rows

THREE = "train.max_steps=3"


def saved_steps(trainer: Trainer) -> list[int]:
    return [int(folder.name.removeprefix("step-")) for folder in reversed(trainer.run_folder.checkpoints())]


def pretend_losses(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """The results of the next evaluations."""
    results = iter(losses)
    monkeypatch.setattr("gpt.training.setup.evaluate", lambda *arguments: Evaluation(next(results), 1))


class At(Monitor):
    """Calls something whenever a step is done; notes what it is told."""

    def __init__(self, act: Any = lambda step: None) -> None:
        self.act, self.closed = act, 0

    def progress(self, step: int, loss: float | None) -> None:
        self.act(step)

    def close(self) -> None:
        self.closed += 1


# --- what is done when ---------------------------------------------------------------------------


def test_accumulation_sees_the_windows_of_the_large_batch(tmp_path: Path, start: Start) -> None:
    start(tmp_path / "one", "train.batch_size=8").run()
    start(tmp_path / "other", "train.batch_size=2", "train.grad_accum_steps=4").run()
    for name in ("train/loss", "train/grad_norm", "val/loss"):
        assert rows(tmp_path / "one", name) == pytest.approx(rows(tmp_path / "other", name), rel=1e-4)


def test_evaluations_logs_and_checkpoints_come_when_the_configuration_says(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, "train.max_steps=7", "train.log_interval=2")
    assert trainer.run().step == 7
    assert list(rows(tmp_path, "train/loss")) == [2, 4, 6, 7]
    assert list(rows(tmp_path, "val/loss")) == saved_steps(trainer) == [3, 6, 7]
    samples = sorted(path.name for path in trainer.run_folder.samples.iterdir())
    assert samples == [f"step-{step:06d}.txt" for step in (3, 6, 7)]


# --- a full disk ---------------------------------------------------------------------------------


def full_between(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> Monitor:
    """The disk is full from one step to another."""

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def act(step: int) -> None:
        monkeypatch.setattr("gpt.checkpoint.folder.sync_file", full if first <= step <= last else lambda path: None)

    return At(act)


def test_a_disk_that_is_full_for_a_while_costs_checkpoints_but_not_the_run(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    trainer = start(tmp_path, "train.max_steps=12", report=lines.append)
    trainer.monitor = full_between(monkeypatch, 2, 7)
    assert trainer.run().step == 12
    assert saved_steps(trainer) == [9, 12]
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert "step-000003: No space left on device; training continues" in warnings[0]
    assert warnings[1].endswith("(2 failed)")


def test_the_best_checkpoint_is_the_best_one_that_could_be_saved(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at step 3, whose loss is the lowest."""
    pretend_losses(monkeypatch, 1.0, 1.5, 2.0)
    trainer = start(tmp_path, "train.max_steps=9", "train.keep_last=1")
    trainer.monitor = full_between(monkeypatch, 2, 4)
    state = trainer.run()
    assert (state.step, state.best_step, state.best_val_loss) == (9, 6, 1.5)
    best = find_checkpoint(trainer.run_folder.path, tmp_path)
    assert (best.name, read_checkpoint(best).state["val_loss"]) == ("step-000006", 1.5)


def test_a_disk_that_is_full_at_the_end_is_an_error(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(tmp_path)
    trainer.monitor = full_between(monkeypatch, 4, 99)
    with pytest.raises(CheckpointError, match=r"cannot write .*step-000006: No space left on device"):
        trainer.run()
    assert saved_steps(trainer) == [3]
    assert read_checkpoint(trainer.run_folder.checkpoints()[0]).state["step"] == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's writer dies aloud
def test_a_disk_that_takes_nothing_more_at_all_loses_curves_and_samples_but_not_the_run(
    tmp_path: Path, start: Start
) -> None:
    """By the kernel's limit on files of this process, beyond which a write fails as on a full disk."""
    lines: list[str] = []
    trainer = start(tmp_path, "train.sample_tokens=40", report=lines.append)
    with full_disk(30), pytest.raises(CheckpointError, match="step-000006"):
        trainer.run()
    assert trainer.state.step == 6
    warned = {line.split()[1] for line in lines if line.startswith("warning: ")}
    assert {"RunFiles", "TensorBoard"} <= warned


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's writer dies aloud
def test_a_run_whose_folder_is_deleted_goes_on_in_a_new_one_and_says_what_is_lost(tmp_path: Path, start: Start) -> None:
    def delete(step: int) -> None:
        while step == 4 and trainer.run_folder.path.exists():  # TensorBoard's thread may write meanwhile
            shutil.rmtree(trainer.run_folder.path, ignore_errors=True)

    lines: list[str] = []
    trainer = start(tmp_path, "train.max_steps=9", report=lines.append)
    trainer.monitor = MonitorGroup([At(delete), trainer.monitor], lines.append)
    assert trainer.run().step == 9
    assert "warning: RunFiles cannot write: No such file or directory; training continues" in lines
    assert saved_steps(trainer) == [6, 9]
    assert trainer.run_folder.config() == trainer.config
    assert list(rows(tmp_path, "train/loss")) == [7, 8, 9]


def test_a_folder_in_the_place_of_the_metrics_costs_them_and_not_the_run(tmp_path: Path, start: Start) -> None:
    lines: list[str] = []
    (tmp_path / "runs" / "run" / "metrics.jsonl").mkdir(parents=True)
    assert start(tmp_path, THREE, report=lines.append).run().step == 3
    assert "warning: RunFiles cannot write: Is a directory; training continues" in lines


# --- values that are not finite ------------------------------------------------------------------


def test_a_run_whose_loss_is_not_finite_ends_and_saves_nothing(tmp_path: Path, start: Start) -> None:
    """A learning rate of 1e30 throws the weights so far that the next forward pass overflows."""
    trainer = start(tmp_path, "optim.learning_rate=1e30", "optim.warmup_steps=0")
    with pytest.raises(NonFiniteError, match="not finite at step 1;"):
        trainer.run()
    assert saved_steps(trainer) == []


@pytest.mark.parametrize("sample_tokens", [0, 8])
def test_a_validation_loss_that_is_not_finite_saves_nothing(tmp_path: Path, start: Start, sample_tokens: int) -> None:
    """It is said before a sample from such weights could fail for the same reason."""
    trainer = start(tmp_path, f"train.sample_tokens={sample_tokens}")

    def spoil(module: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits if module.training or trainer.state.step < 3 else logits * math.nan

    trainer.model.register_forward_hook(spoil)
    with pytest.raises(NonFiniteError, match="the validation loss is not finite at step 3; nothing was saved"):
        trainer.run()
    assert saved_steps(trainer) == list(rows(tmp_path, "val/loss")) == []


def test_a_signal_after_an_unread_bad_step_does_not_save_as_if_it_had_been_made(tmp_path: Path, start: Start) -> None:
    """As on a GPU, where the bad step would only be noticed at the next log line."""
    trainer = start(tmp_path, "train.log_interval=99", "train.max_steps=99", "train.eval_interval=99")
    trainer.stepper.guard.reads_are_free = False
    trainer.model.ln_f.weight.register_hook(lambda gradient: gradient * (math.nan if trainer.state.step == 2 else 1))
    trainer.monitor = At(lambda step: signal.raise_signal(signal.SIGTERM) if step == 5 else None)
    with pytest.raises(NonFiniteError, match="at step 2;"):
        trainer.run()
    assert saved_steps(trainer) == []


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, start: Start) -> None:
    """The loss may be finite although one is not, as where it is multiplied by 0."""
    trainer = start(tmp_path)
    with pytest.raises(NonFiniteError, match=r"the weights w are not finite at step 0; nothing was saved"):
        trainer._write({"w": torch.tensor([1.0, math.inf])}, {}, trainer.state, best=True, required=False)
    assert trainer.run_folder.checkpoints() == []


# --- starts and ends -----------------------------------------------------------------------------


def test_a_checkpoint_that_does_not_fit_leaves_the_run_folder_as_it_was(tmp_path: Path, start: Start) -> None:
    trainer = start(tmp_path, THREE)
    trainer.run()

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in trainer.run_folder.path.rglob("*") if path.is_file()}

    before = files()
    with pytest.raises(CheckpointError, match=r"does not fit the model: .*expected \(29, 32\)"):
        start(tmp_path, "model.n_embd=32", resume="auto", allow_config_change=True)
    assert files() == before


def test_a_changed_configuration_that_was_allowed_is_used_from_the_resume_on(tmp_path: Path, start: Start) -> None:
    first = start(tmp_path, THREE).run().seconds
    trainer = start(tmp_path, "train.max_steps=4", "optim.weight_decay=0.5", resume="auto", allow_config_change=True)
    assert 0 < first < trainer.run().seconds
    assert [group["weight_decay"] for group in trainer.stepper.optimizer.param_groups] == [0.5, 0.0]
    config = trainer.run_folder.config()
    assert config is not None
    assert config.optim.weight_decay == 0.5


@pytest.mark.parametrize("rows_in_batch", [4, 1], ids=["evaluating", "sampling"])
def test_a_signal_while_evaluating_or_sampling_is_obeyed_before_the_next_forward_pass(
    tmp_path: Path, start: Start, rows_in_batch: int
) -> None:
    trainer = start(tmp_path)
    trainer.monitor = monitor = At()
    forwards: list[int] = []

    def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if trainer.state.step == 3:
            forwards.append(len(inputs[0]))
            if forwards[-1] == rows_in_batch and forwards.count(rows_in_batch) == 1:
                signal.raise_signal(signal.SIGTERM)

    trainer.model.register_forward_pre_hook(hook)
    with pytest.raises(Interrupted):
        trainer.run()
    assert forwards.count(rows_in_batch) == 1
    assert forwards[-1] == rows_in_batch
    assert trainer.state.evaluated_step == -1
    assert saved_steps(trainer) == [3]
    assert monitor.closed == 1


def test_a_run_is_locked_from_its_start_to_its_end(tmp_path: Path, start: Start) -> None:
    with pytest.raises(GPTError):
        start(tmp_path, "model.block_size=100000")
    trainer = start(tmp_path, THREE)
    with pytest.raises(CheckpointError, match="another process is training"):
        start(tmp_path, THREE, "run.seed=7", resume="auto")
    start(tmp_path, THREE, "run.name=other").run()
    trainer.run()
    assert start(tmp_path, THREE, resume="auto").run().step == 3
    assert not list((tmp_path / "runs").glob(".*"))


def test_folders_below_a_home_folder_are_found_there(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    start(tmp_path / "elsewhere", "run.dir=~/runs", "data.dir=~/data", "train.max_steps=1").run()
    assert (tmp_path / "home" / "runs" / "run" / "last.json").is_file()
    assert (tmp_path / "home" / "data" / "tokens").is_dir()
    assert not (tmp_path / "~").exists()
