"""Two processes of torchrun that train together, over gloo, against one that trains alone; one pair
runs all scenarios.

And two of which one is killed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.two_processes import DROPOUT, HALVES, LINES, NATIVE, STOPPED_AT, VARIANTS
from native_support import needs_compiler
from torch import Tensor

from gpt.checkpoint import read_checkpoint
from gpt.cli import train
from gpt.native.build import find_compiler
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from patience import PATIENCE
from training.sessions import start_session, stopped_after

TESTS = Path(__file__).resolve().parents[1]
Facts = list[dict[str, Any]]


def run_pair(*arguments: str, restarts: int = 0) -> str:
    """Run `two_processes.py` in two processes, all of which may be started again; return what they
    say.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command += [
        "--max-restarts",
        str(restarts),
        str(TESTS / "distributed" / "two_processes.py"),
        *arguments,
    ]
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stderr


def stop_after(trainer: Trainer, steps: int) -> None:
    """Stop a run, as by a signal, and save it."""
    with stopped_after(steps), pytest.raises(Interrupted):
        trainer.run()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process has done, before the pair: the same runs, and some that are not finished."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "tiny.yaml").write_text("run: {device: cpu}\n", encoding="utf-8")
    for variant, overrides in VARIANTS.items():
        start_session(folder / variant, *overrides).run()
    start_session(folder / "muon-halves", *VARIANTS["muon"], *HALVES).run()
    start_session(folder / "lines", *LINES).run()
    if find_compiler() is not None:
        start_session(folder / "native", *NATIVE).run()
    stop_after(start_session(folder / "alone", *DROPOUT), STOPPED_AT)
    return folder


@pytest.fixture(scope="module")
def facts(folder: Path) -> Facts:
    """What each rank has to say."""
    run_pair(str(folder))
    return [
        json.loads((folder / f"facts-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)
    ]


def metrics(run: Path) -> list[dict[str, float]]:
    """The losses and norms of a run, by line."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith("speed/")} for line in lines
    ]


def saved(run: Path, step: int) -> dict[str, Any]:
    """The tensors of a checkpoint, by name."""
    checkpoint = read_checkpoint(run / "checkpoints" / f"step-{step:06d}")
    found: dict[str, Any] = dict(checkpoint.model)
    for name, optimizer in checkpoint.training["optimizer"].items():
        for number, entry in optimizer["state"].items():
            found |= {f"{name}/{number}/{key}": value for key, value in entry.items()}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def assert_same_metrics(run: Path, other: Path) -> None:
    for line, expected in zip(metrics(run), metrics(other), strict=True):
        norm = expected.pop("train/grad_norm", 0.0)
        assert line.pop("train/grad_norm", 0.0) == pytest.approx(norm, rel=5e-6)
        assert line == pytest.approx(expected, rel=1e-6)


def largest_difference(run: Path, other: Path, step: int) -> float:
    """Between the tensors of two checkpoints."""
    tensors = saved(run, step)
    expected = saved(other, step)
    assert tensors.keys() == expected.keys()
    return max(float((tensor - expected[name]).abs().max()) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("variant", "alone", "most"),
    [
        ("adamw", "adamw", 3e-6),
        # Muon alone adds in the same order here: its Newton-Schulz iteration would make other
        # rounding errors visible.
        (
            "muon",
            "muon-halves",
            0,
        ),
        ("lines", "lines", 3e-6),
        pytest.param("native", "native", 1e-6, marks=needs_compiler),
    ],
)
def test_losses_weights_and_moments_are_those_of_one_process(
    folder: Path, facts: Facts, variant: str, alone: str, most: float
) -> None:
    run, other = (folder / name / "runs/run" for name in (f"{variant}-pair", alone))
    assert len(metrics(other)) > 20
    assert_same_metrics(run, other)
    assert largest_difference(run, other, 20) <= most


def test_each_process_reads_its_own_half_of_every_micro_batch(facts: Facts) -> None:
    for name, fact in facts[0]["equal_runs"].items():
        micro_batches = zip(fact["read"], facts[1]["equal_runs"][name]["read"], strict=True)
        parts = [part for pair in micro_batches for part in pair]
        assert len({len(part) for part in parts}) == 1
        assert [row for part in parts for row in part] == fact["whole"]


def test_signal_to_one_process_stops_both_and_resume_is_exact(folder: Path, facts: Facts) -> None:
    assert [fact["signal_to_one"] for fact in facts] == [[STOPPED_AT + 1, 143]] * 2
    stopped, straight = (folder / name / "runs/run" for name in ("stopped", "straight"))
    assert metrics(stopped) == metrics(straight)
    assert largest_difference(stopped, straight, 9) == 0
    states = read_checkpoint(straight / "checkpoints/step-000009").training
    one, other = states["generators"]  # each has dropout of its own
    assert not torch.equal(one["cpu"], other["cpu"])


def test_another_number_of_processes_continues(folder: Path, facts: Facts) -> None:
    """One what two have left, and two what one has left."""
    said: list[str] = []
    trainer = start_session(folder / "left", *DROPOUT, resume="auto", report=said.append)
    before = saved(folder / "left" / "runs/run", STOPPED_AT + 1)
    assert all(
        torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters()
    )
    assert trainer.run().step == 9
    assert any(
        "saved the checkpoint: the random numbers of dropout were re-seeded" in line
        for line in said
    )
    assert metrics(folder / "alone" / "runs/run")[-1]["step"] == 9
    assert (
        len([line for line in facts[0]["from_one_to_two"] if line.startswith("another number")])
        == 1
    )


def test_failure_of_one_process_is_one_outcome_for_all(facts: Facts) -> None:
    """A checkpoint that cannot be written, a loss that is not finite, and an error, which that
    process tells.
    """
    assert [fact["failed_saves"] for fact in facts] == [
        [6, -1, "CheckpointError", 2],
        [6, -1, "PeerError", 2],
    ]
    assert [fact["not_finite"] for fact in facts] == [[2, 3]] * 2
    assert [fact["error_of_one"] for fact in facts] == ["PeerError", "DeviceError"]


def test_group_is_gone_before_the_process_ends(facts: Facts) -> None:
    """A thread of gloo that outlives the interpreter aborts it."""
    assert [fact["group"] for fact in facts] == ["None", "None"]


def test_killed_process_ends_all_and_torchrun_starts_them_again(workplace: Path) -> None:
    overrides = ["train.eval_interval=2", "run.threads=1"]
    assert train.main(["--config", "tiny.yaml", "run.name=alone", *overrides]) == 0
    said = run_pair("--config", "tiny.yaml", "--resume", "auto", *overrides, restarts=1)
    assert (
        said.count("\nerror: another process of this training has ended; continue from the last ")
        == 1
    )
    assert said.count(f"resuming {Path('runs/tiny/checkpoints/step-000004')}") == 1
    assert "Traceback" not in said
    assert_same_metrics(Path("runs/tiny"), Path("runs/alone"))
