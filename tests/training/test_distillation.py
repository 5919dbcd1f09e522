"""Self-distillation: the teacher's run, what it predicts, and a training of two runs."""

import gc
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import yaml

import gpt
from gpt.checkpoint import Checkpoint, RunFolder, read_checkpoint
from gpt.cli import train
from gpt.config.loading import LoadedConfig, parse_config
from gpt.data.batches import BatchSampler
from gpt.device import Compute
from gpt.errors import DeviceError
from gpt.training import plan
from gpt.training.distillation import Teacher, predict, require_probabilities_memory, teacher_config
from gpt.training.schedule import sequence_length
from gpt.training.trainer import Trainer
from tiny import TINY, sharp_model

from .conftest import Start

COMPUTE = Compute(torch.device("cpu"), torch.float32)
TAUGHT = ["train.teacher_share=0.6", "train.teacher_weight=0.4"]


def arguments(workplace: Path, *options: str) -> list[str]:
    return ["--config", str(workplace / "tiny.yaml"), f"run.dir={workplace / 'runs'}", *TAUGHT, *options]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(run / "checkpoints" / "step-000006").model


def test_the_teacher_is_a_shorter_run_with_another_seed() -> None:
    overrides = [*TAUGHT, "optim.schedule=wsd", "optim.decay_steps=3", "train.max_steps=6", "train.length_warmup=[0.5]"]
    loaded = LoadedConfig(parse_config(TINY, "tiny.yaml", overrides), "file")
    teacher = teacher_config(loaded).config
    assert (teacher.run.name, teacher.run.seed) == ("tiny-teacher", loaded.config.run.seed + 1)
    assert (teacher.train.max_steps, teacher.optim.decay_steps, teacher.train.teacher_share) == (4, 2, None)
    assert replace(loaded, config=teacher).config.model == loaded.config.model
    assert [sequence_length(step, teacher) for step in range(4)] == [8, 8, 16, 16]


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
        pytest.raises(DeviceError, match=r"teacher's probabilities.*train\.teacher_share"),
    ):
        require_probabilities_memory(trainer.dataset, trainer.config)


def test_one_command_plans_and_locks_both_runs_once_before_it_trains_them(
    workplace: Path,
) -> None:
    counted = ("prepare", "find_resume_point", "check_parallel")
    step, locked = Trainer._train_one_step, []

    def watched(trainer: Trainer) -> None:
        locked.append([RunFolder(workplace / "runs" / name).is_being_trained() for name in ("tiny-teacher", "tiny")])
        step(trainer)

    with ExitStack() as stack:
        calls = [stack.enter_context(patch.object(plan, name, wraps=getattr(plan, name))) for name in counted]
        stack.enter_context(patch.object(Trainer, "_train_one_step", watched))
        assert train.main(arguments(workplace)) == 0
    assert [call.call_count for call in calls] == [1, 2, 2]
    assert locked == 4 * [[True, True]] + 6 * [[False, True]]
    runs = workplace / "runs"
    assert not list(runs.glob(".*"))
    assert read_checkpoint(runs / "tiny-teacher/checkpoints/step-000004").state["step"] == 4
    assert train.main(["--config", str(workplace / "tiny.yaml"), f"run.dir={runs}", "run.name=alone"]) == 0
    taught, alone = weights(runs / "tiny"), weights(runs / "alone")
    assert not torch.equal(taught["wte.weight"], alone["wte.weight"])


def test_a_teacher_predicts_at_the_temperature_of_its_training(workplace: Path) -> None:
    with patch("gpt.training.distillation.predict", wraps=predict) as predicted:
        assert train.main(arguments(workplace, "train.temperature=0.5")) == 0
    assert predicted.call_args.args[-1] == 0.5


def test_a_failing_teacher_leaves_no_run_locked_while_its_traceback_is_kept(workplace: Path) -> None:
    config = (workplace / "tiny.yaml").read_text(encoding="utf-8")
    with (
        patch.object(Trainer, "_train_one_step", side_effect=RuntimeError("a bug")),
        pytest.raises(RuntimeError, match="a bug") as kept,
    ):
        gpt.train(config=yaml.safe_load(config), run={"dir": str(workplace / "runs")}, teacher_share=0.6)
    assert kept.tb
    assert not any(RunFolder(workplace / "runs" / name).is_being_trained() for name in ("tiny-teacher", "tiny"))


def test_no_checkpoint_stays_in_memory_while_a_run_goes_on_from_it(workplace: Path) -> None:
    longer = ("train.max_steps=8", "--allow-config-change", "--resume", "auto")
    assert train.main(["--config", str(workplace / "tiny.yaml")]) == 0
    step, kept = Trainer._train_one_step, []

    def found() -> list[object]:
        return [thing for thing in gc.get_objects() if type(thing) in (plan.Plan, Checkpoint)]

    # those that the tracebacks of other tests hold
    others = set(map(id, found()))

    def watched(trainer: Trainer) -> None:
        kept.extend(thing for thing in found() if id(thing) not in others)
        step(trainer)

    with patch.object(Trainer, "_train_one_step", watched):
        assert train.main(["--config", str(workplace / "tiny.yaml"), *longer]) == 0
    assert kept == []


def test_a_teacher_that_stopped_early_is_not_begun_again(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never_better = ("train.patience=1", "train.eval_interval=1", "optim.learning_rate=1e-30", "optim.min_lr=0")
    assert train.main(arguments(workplace, *never_better)) == 0
    assert "first its teacher" in capsys.readouterr().err
    assert read_checkpoint(RunFolder(workplace / "runs" / "tiny-teacher").checkpoints()[0]).state["step"] < 4
    assert train.main(arguments(workplace, *never_better, "--resume", "auto")) == 0
    assert "first its teacher" not in capsys.readouterr().err


def test_it_continues_after_a_stop_in_either_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(arguments(workplace, "run.name=whole")) == 0
    step = Trainer._train_one_step
    for stop in (3, 7):  # in the teacher, after its 4 steps in the student
        steps = iter(range(1, 100))

        def stopping(trainer: Trainer, steps=steps, stop=stop) -> None:  # type: ignore[no-untyped-def]
            step(trainer)
            if next(steps) == stop:
                signal.raise_signal(signal.SIGTERM)

        name = f"run.name=stop{stop}"
        with patch.object(Trainer, "_train_one_step", stopping):
            assert train.main(arguments(workplace, name)) == 143
        assert ("the same command" in capsys.readouterr().err) == (stop == 3)
        assert train.main(arguments(workplace, name, "--resume", "auto")) == 0
        found, whole = weights(workplace / f"runs/stop{stop}"), weights(workplace / "runs/whole")
        assert all(torch.equal(found[key], whole[key]) for key in whole)


@pytest.mark.parametrize("again", ["the command", "the run's configuration"])
def test_a_student_whose_warmup_was_cut_continues(
    workplace: Path, capsys: pytest.CaptureFixture[str], again: str
) -> None:
    command = arguments(workplace, "optim.warmup_steps=40", "train.max_steps=20", "train.eval_interval=20")
    step = Trainer._train_one_step

    def stopping(trainer: Trainer) -> None:
        step(trainer)
        if trainer.run_folder.path.name == "tiny":
            signal.raise_signal(signal.SIGTERM)

    with patch.object(Trainer, "_train_one_step", stopping):
        assert train.main(command) == 143
    assert train.main(command) == 2
    assert "exists already, with this configuration" in capsys.readouterr().err
    of_run = ["--config", str(workplace / "runs/tiny/config.yaml")]
    assert train.main([*(command if again == "the command" else of_run), "--resume", "auto"]) == 0
    assert (workplace / "runs/tiny/checkpoints/step-000020").is_dir()


def test_a_teacher_or_student_that_learned_something_else_teaches_nothing(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, other = workplace / "runs", ("optim.learning_rate=1e-2", "--resume", "auto")
    assert train.main(arguments(workplace)) == 0
    shutil.rmtree(runs / "tiny")
    assert train.main(arguments(workplace, *other)) == 0
    said = capsys.readouterr().err
    assert "tiny-teacher had another configuration (optim.learning_rate: 0.001 -> 0.01)" in said
    assert {path.name for path in runs.iterdir()} == {"tiny", "tiny-teacher", "tiny-teacher.1"}
    shutil.rmtree(runs / "tiny-teacher")
    assert train.main(arguments(workplace, "--resume", "auto")) == 0
    assert "first its teacher" in capsys.readouterr().err
    assert (runs / "tiny.1/last.json").is_file()


def test_a_teacher_of_a_fine_tuned_run_is_found_again(workplace: Path) -> None:
    assert train.main(arguments(workplace, "run.name=base")) == 0
    (workplace / "less.txt").write_text("It was the best of rooms, it was the worst of rooms.\n" * 50)
    tuned = ["run.name=tuned", "train.init_from=runs/base", "data.path=less.txt"]  # it has fewer characters
    assert train.main(arguments(workplace, *tuned)) == 0
    shutil.rmtree(workplace / "runs/tuned")
    assert train.main(arguments(workplace, *tuned, "--resume", "auto")) == 0
    assert (workplace / "runs/tuned/last.json").is_file()
