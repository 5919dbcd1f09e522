"""A run that was stopped and continued is the run that was never stopped: every bit of it."""

import signal
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from native_support import needs_compiler

from drills.leftovers import Leftovers, differing, everything
from gpt.checkpoint import read_checkpoint
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from patience import examples
from training.sessions import start_session as start

MAX_STEPS = 9
RECIPE = (
    *(
        f"train.max_steps={MAX_STEPS}",
        "train.eval_interval=3",
        "train.grad_accum_steps=2",
        "train.sample_tokens=12",
    ),
    "model.dropout=0.2",
)
RUN = Path("runs/run")
TRAIN, EVALUATE, SAMPLE = PHASES = "train", "evaluate", "sample"
CRASH = 0
Interruption = tuple[int, str, int]
"""A signal, or a crash, in a phase after so many steps."""


class Crash(Exception):
    """Nothing is saved where it passes."""


def stopping(
    work: Callable[..., Any], trainer: Trainer, interruption: Interruption
) -> Callable[..., Any]:
    """Return what does some work of a phase, but is interrupted after so many steps."""
    step, phase, number = interruption

    def stop() -> None:
        if number == CRASH:
            raise Crash
        signal.raise_signal(number)

    def stopped(*args: Any, **options: Any) -> Any:
        if trainer.state.step != step:
            return work(*args, **options)
        if phase == TRAIN:
            stop()
            return work(*args, **options)

        def hook(*_: object) -> None:
            handle.remove()
            stop()

        handle = trainer.model.register_forward_pre_hook(hook)
        return work(*args, **options)

    return stopped


def interrupt(
    folder: Path, recipe: tuple[str, ...], interruption: Interruption, resume: str = "auto"
) -> None:
    """Train until an interruption, or to the end where it does not come."""
    step, phase, number = interruption
    trainer = start(folder, *recipe, resume=resume)

    part, name = {
        TRAIN: (trainer.stepper, "step"),
        EVALUATE: (trainer.validation, "loss"),
        SAMPLE: (trainer.validation, "sample"),
    }[phase]
    # In the pass itself, but for a step: of a model with a hook PyTorch makes the steps, which has
    # other bits than the kernels.
    setattr(part, name, stopping(getattr(part, name), trainer, interruption))
    comes = trainer.state.step <= step and (
        step < MAX_STEPS if phase == TRAIN else step > 0 and step % 3 == 0
    )
    comes &= phase == TRAIN or trainer.state.evaluated_step != step
    with pytest.raises((Crash, Interrupted)) if comes else nullcontext() as stopped:
        trainer.run()
    if comes and number != CRASH:
        assert stopped.value.exit_code == 128 + number
        assert trainer.state.step == step + (phase == TRAIN)
        assert (
            read_checkpoint(trainer.run_folder.checkpoints()[0]).state["step"] == trainer.state.step
        )
    torch.manual_seed(step)  # another process has other numbers in its generators


def finish(folder: Path, recipe: tuple[str, ...]) -> Leftovers:
    start(folder, *recipe, resume="auto").run()
    return everything(folder / RUN)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Leftovers:
    found = finish(tmp_path_factory.mktemp("uninterrupted"), RECIPE)
    kinds = (
        "weights/wte.weight",
        "training/sampler/generator",
        "training/generators/0/cpu",
        "state/best_step",
        "best",
    )
    assert found.keys() >= {*kinds, "metrics/1/train/loss", "metrics/3/val/loss", "step-000006.txt"}
    return found


@examples(0.06)
@given(
    st.lists(
        st.tuples(
            st.integers(0, MAX_STEPS),
            st.sampled_from(PHASES),
            st.sampled_from([signal.SIGINT, signal.SIGTERM, CRASH]),
        ),
        min_size=1,
        max_size=3,
    )
)
@example([(0, TRAIN, signal.SIGTERM)])  # before the first update is counted
@example([(3, EVALUATE, signal.SIGINT)])
@example([(6, SAMPLE, signal.SIGTERM)])
@example([(2, TRAIN, signal.SIGINT)])  # the step that makes an evaluation due
# After the last update, before its evaluation.
@example([(MAX_STEPS - 1, TRAIN, signal.SIGTERM)])
@example([(MAX_STEPS, EVALUATE, signal.SIGTERM)])
@example([(0, TRAIN, CRASH), (5, TRAIN, CRASH), (6, SAMPLE, CRASH), (8, TRAIN, CRASH)])
def test_interrupted_run_goes_on_as_if_nothing_had_been(
    uninterrupted: Leftovers, interruptions: list[Interruption]
) -> None:
    """Steps that a crash lost are made twice, and must come out the same."""
    with tempfile.TemporaryDirectory() as name:
        for interruption in interruptions:
            interrupt(Path(name), RECIPE, interruption)
        assert differing(finish(Path(name), RECIPE), uninterrupted) == []


def test_resume_that_crashed_before_a_save_repeats_its_start(
    tmp_path: Path, uninterrupted: Leftovers
) -> None:
    """The metrics of later steps are gone already."""
    finish(tmp_path, RECIPE)
    interrupt(
        tmp_path,
        RECIPE,
        (4, TRAIN, CRASH),
        resume=str(tmp_path / RUN / "checkpoints" / "step-000003"),
    )
    assert differing(finish(tmp_path, RECIPE), uninterrupted) == []


MUON = ("optim.name=muon", "optim.weight_decay=0.1")
NATIVE = ("run.kernels=native", "run.dtype=auto", "model.n_embd=64")


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(
            ("data.order=shuffled", "train.length_warmup=[0.5]"),
            id="shuffled, short sequences first",
        ),
        pytest.param(("data.items=lines", "model.block_size=96"), id="lines"),
        pytest.param((*MUON, "run.kernels=torch"), id="muon"),
        pytest.param((*MUON, *NATIVE), id="muon, native", marks=needs_compiler),
    ],
)
def test_other_optimizers_and_kernels_go_on_as_exactly(
    tmp_path: Path, variant: tuple[str, ...]
) -> None:
    recipe = (*RECIPE, *variant)
    folder = tmp_path / "stopped"
    straight = finish(tmp_path / "straight", recipe)
    assert ("training/optimizer/muon/state/0/momentum" in straight) == (
        "optim.name=muon" in variant
    )
    for step, phase, number in (
        (2, TRAIN, 15),
        (3, EVALUATE, 15),
        (6, SAMPLE, CRASH),
        (8, TRAIN, 15),
    ):
        interrupt(folder, recipe, (step, phase, number))
    assert differing(finish(folder, recipe), straight) == []


def test_evaluations_and_samples_do_not_change_what_is_learned(
    tmp_path: Path, uninterrupted: Leftovers
) -> None:
    """They have their own randomness, or none."""
    watched = finish(
        tmp_path, (*RECIPE, "train.eval_interval=2", "train.sample_tokens=3", "sample.seed=5")
    )
    learned = [
        key
        for key in uninterrupted
        if key.startswith(("weights/", "training/")) or "/train/" in key
    ]
    assert len(learned) > 60
    assert (
        differing(
            {key: watched[key] for key in learned}, {key: uninterrupted[key] for key in learned}
        )
        == []
    )
