"""Two processes that train together, over gloo, against one that trains alone; one pair runs all scenarios."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.two_processes import DROPOUT, HALVES, METHODS, NATIVE, STOPPED_AT, VARIANTS
from native_support import needs_compiler
from torch import Tensor

from gpt.checkpoint import read_checkpoint
from gpt.kernels.build import find_compiler
from gpt.plugins import load_plugins
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from patience import PATIENCE
from plugin_files import PARTS
from training.sessions import start_session

TESTS = Path(__file__).resolve().parents[1]
Facts = list[dict[str, Any]]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def run_pair(script: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run a script in two processes, as torchrun starts them."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    processes = []
    for rank in ("0", "1"):
        variables = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": paths}
        command = [sys.executable, str(script), *arguments]
        processes.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    ended = [process.communicate(timeout=PATIENCE) for process in processes]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(processes, ended, strict=True)
    ]


def stop_after(trainer: Trainer, steps: int) -> None:
    """Stop a run, as by a signal, and save it."""
    trainer.monitor.progress = lambda step, loss: (  # type: ignore[method-assign]
        setattr(trainer.signals, "_received", 15) if step == steps else None
    )
    with pytest.raises(Interrupted):
        trainer.run()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process has done, before the pair: the same runs, and some that are not finished."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "tiny.yaml").write_text("run: {device: cpu, compile: false}\n", encoding="utf-8")
    (folder / "my_parts.py").write_text(PARTS, encoding="utf-8")
    for variant, overrides in VARIANTS.items():
        start_session(folder / variant, *overrides).run()
    start_session(folder / "muon-halves", *VARIANTS["muon"], *HALVES).run()
    if find_compiler() is not None:
        start_session(folder / "native", *NATIVE).run()
    for method in METHODS:
        stop_after(start_session(folder / f"alone-{method}", *DROPOUT, f"run.parallel={method}"), STOPPED_AT)
    return folder


@pytest.fixture(scope="module")
def facts(folder: Path) -> Facts:
    """What each rank has to say."""
    native = ["native"] if find_compiler() is not None else []
    for process in run_pair(TESTS / "distributed" / "two_processes.py", str(folder), *native):
        assert process.returncode == 0, process.stderr[-4000:]
    return [json.loads((folder / f"facts-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def metrics(run: Path) -> list[dict[str, float]]:
    """The losses and norms of a run, by line."""
    lines = (run / "runs" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("speed/")} for line in lines]


def saved(run: Path, step: int) -> dict[str, Any]:
    """The tensors of a checkpoint, by name."""
    checkpoint = read_checkpoint(run / "runs" / "run" / "checkpoints" / f"step-{step:06d}")
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
    tensors, expected = saved(run, step), saved(other, step)
    assert tensors.keys() == expected.keys()
    return max(float((tensor - expected[name]).abs().max()) for name, tensor in tensors.items())


@pytest.mark.parametrize("method", METHODS)
def test_losses_weights_and_moments_are_those_of_one_process(folder: Path, facts: Facts, method: str) -> None:
    """With Muon bitwise those of one that adds in the same order: Newton-Schulz makes other rounding errors visible."""
    for variant, alone, most in (("adamw", "adamw", 3e-6), ("muon", "muon-halves", 0)):
        assert len(metrics(folder / alone)) > 20
        assert_same_metrics(folder / f"{variant}-{method}", folder / alone)
        assert largest_difference(folder / f"{variant}-{method}", folder / alone, 20) <= most


@needs_compiler
@pytest.mark.parametrize("method", METHODS)
def test_native_kernels_compute_the_same_by_two_processes(folder: Path, facts: Facts, method: str) -> None:
    assert_same_metrics(folder / f"native-{method}", folder / "native")
    assert largest_difference(folder / f"native-{method}", folder / "native", 20) < 1e-6


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("method", METHODS)
def test_an_optimizer_of_a_plugin_is_resumed_exactly(folder: Path, facts: Facts, method: str) -> None:
    load_plugins([folder / "my_parts.py"])
    assert largest_difference(folder / f"parts-{method}", folder / f"parts-{method}-again", 6) == 0
    assert "momentum/3/average" in saved(folder / f"parts-{method}", 6)


def test_each_process_reads_its_own_half_of_every_micro_batch(facts: Facts) -> None:
    for name, fact in facts[0]["equal_runs"].items():
        micro_batches = zip(fact["read"], facts[1]["equal_runs"][name]["read"], strict=True)
        parts = [part for pair in micro_batches for part in pair]
        assert len({len(part) for part in parts}) == 1
        assert [row for part in parts for row in part] == fact["whole"]


@pytest.mark.parametrize("method", METHODS)
def test_a_signal_to_one_stops_both_and_resuming_is_exact_with_dropout(folder: Path, facts: Facts, method: str) -> None:
    for rank in (0, 1):
        assert facts[rank]["signal_to_one"][method] == [STOPPED_AT + 1, 143]
    assert metrics(folder / f"stopped-{method}") == metrics(folder / f"straight-{method}")
    tensors, expected = saved(folder / f"stopped-{method}", 9), saved(folder / f"straight-{method}", 9)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
    run = folder / f"straight-{method}" / "runs" / "run" / "checkpoints" / "step-000009"
    states = read_checkpoint(run).training
    (other,) = states["other_generators"]  # each has dropout of its own
    assert not torch.equal(states["generators"]["cpu"], other["cpu"])


@pytest.mark.parametrize("method", METHODS)
def test_one_process_continues_what_two_have_left(folder: Path, facts: Facts, method: str) -> None:
    said: list[str] = []
    trainer = start_session(folder / f"left-{method}", *DROPOUT, resume="auto", report=said.append)
    before = saved(folder / f"left-{method}", STOPPED_AT + 1)
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(before[name], weight)
    assert trainer.run().step == 9
    assert any("saved the checkpoint: dropout has new random numbers" in line for line in said)


def test_two_processes_continue_what_one_has_left(folder: Path, facts: Facts) -> None:
    for method in METHODS:
        assert [line["step"] for line in metrics(folder / f"alone-{method}")][-1] == 9
    said = [line for line in facts[0]["from_one_to_two"] if line.startswith("another number")]
    assert len(said) == len(METHODS)


def test_a_checkpoint_that_cannot_be_written_is_one_outcome_for_all(facts: Facts) -> None:
    assert [fact["failed_saves"] for fact in facts] == [[6, -1, "CheckpointError", 2], [6, -1, "PeerError", 2]]


def test_a_loss_that_is_not_finite_in_one_process_stops_both(facts: Facts) -> None:
    assert [fact["not_finite"] for fact in facts] == [[2, 3]] * 2


def test_an_error_of_one_process_is_told_by_that_one(facts: Facts) -> None:
    assert [fact["error_of_one"] for fact in facts] == ["PeerError", "DeviceError"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("option", "unrecognized arguments"),
        ("key", "train.batch"),
        ("batch", "train.batch_size is 5, which 2 processes cannot share equally"),
        ("corpus", "missing.txt"),
        ("device", "run.device is mps, but each of 2 processes needs its own"),
        ("resume", "no such run or checkpoint"),
    ],
)
def test_a_mistake_is_told_once_and_ends_all(facts: Facts, folder: Path, name: str, message: str) -> None:
    (code, said, _), (other_code, other_said, _) = (fact["commands"][name] for fact in facts)
    assert (code, other_code) == (2, 2)
    assert message in said
    assert said.count("\n") == 1
    assert other_said == ""
    assert not (folder / "runs").exists()


def test_what_is_asked_for_is_printed_once(facts: Facts) -> None:
    (code, _, printed), other = (fact["commands"]["config"] for fact in facts)
    assert (code, printed[:4]) == (0, "run:")
    assert (other[0], other[2]) == (0, "")
