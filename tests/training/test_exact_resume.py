"""A run that was stopped and continued is the run that was never stopped: every bit of it."""

import signal
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from native_support import needs_compiler
from torch import Tensor

from drills.leftovers import Leftovers, differing, everything
from gpt.checkpoint import read_checkpoint
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from patience import examples
from training.sessions import Start

MAX_STEPS = 9
RECIPE = (
    f"train.max_steps={MAX_STEPS}",
    "train.eval_interval=3",
    "train.grad_accum_steps=2",
    "train.sample_tokens=12",
    "model.dropout=0.2",
)
RUN = Path("runs/run")
PHASES = ("train", "evaluate", "sample")


def at_a_forward_pass(trainer: Trainer, step: int, phase: str, event: Callable[[], None]) -> None:
    """Have something happen once in that phase, after so many steps."""

    def hook(module: torch.nn.Module, inputs: tuple[Tensor]) -> None:
        present = "train" if module.training else "evaluate" if len(inputs[0]) > 1 else "sample"
        if trainer.state.step == step and present == phase:
            handle.remove()
            event()

    handle = trainer.model.register_forward_pre_hook(hook)


@pytest.fixture(scope="module")
def uninterrupted(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Leftovers:
    folder = tmp_path_factory.mktemp("uninterrupted")
    start(folder, *RECIPE).run()
    return everything(folder / RUN)


def test_the_comparison_is_of_everything_that_there_is(uninterrupted: Leftovers) -> None:
    kinds = ("weights/wte.weight", "training/sampler/generator", "training/generators/cpu", "state/best_step", "best")
    assert uninterrupted.keys() >= {*kinds, "metrics/1/train/loss", "metrics/3/val/loss", "step-000006.txt"}
    tensors = [key for key, value in uninterrupted.items() if isinstance(value, Tensor)]
    assert sum("/exp_avg_sq" in key for key in tensors) == sum(key.startswith("weights/") for key in tensors)


@examples(0.04)
@given(
    step=st.integers(0, MAX_STEPS),
    phase=st.sampled_from(PHASES),
    number=st.sampled_from([signal.SIGINT, signal.SIGTERM]),
)
@example(step=0, phase="train", number=signal.SIGTERM)  # before the first update is counted
@example(step=3, phase="evaluate", number=signal.SIGINT)
@example(step=6, phase="sample", number=signal.SIGTERM)
@example(step=2, phase="train", number=signal.SIGINT)  # the step that makes an evaluation due
@example(step=MAX_STEPS - 1, phase="train", number=signal.SIGTERM)  # the last update, and its evaluation not yet made
@example(step=MAX_STEPS, phase="evaluate", number=signal.SIGTERM)
def test_a_run_that_a_signal_stopped_goes_on_as_if_nothing_had_been(
    start: Start, uninterrupted: Leftovers, step: int, phase: str, number: signal.Signals
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer = start(folder, *RECIPE)
        at_a_forward_pass(trainer, step, phase, lambda: signal.raise_signal(number))
        happens = step < MAX_STEPS if phase == "train" else step > 0 and step % 3 == 0
        with pytest.raises(Interrupted) if happens else nullcontext() as stopped:
            trainer.run()
        if happens:
            assert stopped.value.exit_code == 128 + number
            assert trainer.state.step == step + (phase == "train")
            assert read_checkpoint(trainer.run_folder.checkpoints()[0]).state["step"] == trainer.state.step
            torch.manual_seed(step)  # another process has other numbers in its generators
            start(folder, *RECIPE, resume="auto").run()
        assert differing(everything(folder / RUN), uninterrupted) == []


class Crash(Exception):
    """Nothing is saved where it passes."""


def crash() -> None:
    raise Crash


@examples(0.02)
@given(crashes=st.lists(st.tuples(st.integers(0, MAX_STEPS - 1), st.sampled_from(PHASES)), min_size=1, max_size=3))
@example(crashes=[(0, "train"), (5, "train"), (6, "sample"), (8, "train")])
def test_a_run_that_crashed_again_and_again_goes_on_from_its_last_checkpoint(
    start: Start, uninterrupted: Leftovers, crashes: list[tuple[int, str]]
) -> None:
    """Some steps are made twice, and must come out the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step, phase in crashes:
            trainer = start(folder, *RECIPE, resume="auto")
            at_a_forward_pass(trainer, step, phase, crash)
            with suppress(Crash):
                trainer.run()
            torch.manual_seed(step)
        start(folder, *RECIPE, resume="auto").run()
        assert differing(everything(folder / RUN), uninterrupted) == []


def test_a_resume_by_path_that_crashes_before_it_saves_goes_on_from_there(
    tmp_path: Path, start: Start, uninterrupted: Leftovers
) -> None:
    """The metrics of later steps are gone already."""
    start(tmp_path, *RECIPE).run()
    trainer = start(tmp_path, *RECIPE, resume=str(tmp_path / RUN / "checkpoints" / "step-000003"))
    at_a_forward_pass(trainer, 4, "train", crash)
    with suppress(Crash):
        trainer.run()
    start(tmp_path, *RECIPE, resume="auto").run()
    assert differing(everything(tmp_path / RUN), uninterrupted) == []


MUON = ("optim.name=muon", "optim.weight_decay=0.1")
NATIVE = ("run.kernels=native", "run.dtype=auto", "model.n_embd=64")


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(("data.order=shuffled", "train.length_warmup=[0.5]"), id="shuffled, short sequences first"),
        pytest.param((*MUON, "run.kernels=torch"), id="muon"),
        pytest.param(NATIVE, id="native", marks=needs_compiler),
        pytest.param((*MUON, *NATIVE), id="both", marks=needs_compiler),
    ],
)
def test_other_optimizers_and_kernels_go_on_as_exactly(tmp_path: Path, start: Start, variant: tuple[str, ...]) -> None:
    """Stopped by signals in training and in an evaluation, by a crash in a sample."""
    recipe = (*RECIPE, *variant)
    start(tmp_path / "straight", *recipe).run()
    straight, folder = everything(tmp_path / "straight" / RUN), tmp_path / "stopped"
    for step, phase in ((2, "train"), (3, "evaluate"), (6, "sample"), (8, "train")):
        trainer = start(folder, *recipe, resume="auto")
        event = crash if phase == "sample" else lambda: signal.raise_signal(signal.SIGTERM)
        at_a_forward_pass(trainer, step, phase, event)
        with pytest.raises((Interrupted, Crash)):
            trainer.run()
        torch.manual_seed(step)
    start(folder, *recipe, resume="auto").run()
    assert differing(everything(folder / RUN), straight) == []
    if "optim.name=muon" in variant:
        assert "training/optimizer/muon/state/0/momentum" in straight


def test_what_is_watched_does_not_change_what_is_learned(
    tmp_path: Path, start: Start, uninterrupted: Leftovers
) -> None:
    """Evaluations and samples have their own randomness, or none."""
    harmless = ("train.eval_interval=2", "train.sample_tokens=3")
    start(tmp_path, *RECIPE, *harmless, "sample.seed=5").run()
    watched = everything(tmp_path / RUN)
    learned = [key for key in uninterrupted if key.startswith(("weights/", "training/")) or "/train/" in key]
    assert len(learned) > 60
    assert differing({key: watched[key] for key in learned}, {key: uninterrupted[key] for key in learned}) == []
