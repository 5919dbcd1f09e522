"""scripts/train.py as a user and a batch system meet it: real processes, real signals, real exit codes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt.checkpoint import Checkpoint, RunFolder, read_checkpoint
from server_process import insist
from tiny import CORPUS

ROOT = Path(__file__).resolve().parents[2]
MAX_STEPS = 200
CONFIG = f"""
run: {{name: run, device: cpu, dtype: float32, compile: false, threads: 1}}
data: {{source: file, path: corpus.txt, val_fraction: 0.9}}
model: {{n_layer: 1, n_head: 2, n_embd: 16, block_size: 16, dropout: 0.1}}
optim: {{warmup_steps: 2}}
train:
  batch_size: 2
  grad_accum_steps: 2
  max_steps: {MAX_STEPS}
  eval_interval: 1000
  eval_batch_size: 512
  log_interval: 1
  sample_tokens: 0
"""
PATIENCE = 60
"""Seconds to wait for anything at all, on a machine that is busy."""


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with recipe.yaml and a text of which nearly all is held out: evaluation can be made slow."""
    (tmp_path / "recipe.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "corpus.txt").write_text(CORPUS * 1000, encoding="utf-8")
    return tmp_path


def as_in_a_terminal() -> None:
    """SIGINT is not ignored, even if these tests are a background job of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run:
    """A training process, and the run folder that it writes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = RunFolder(folder / "runs" / "run")
        self.log = folder / "stderr.txt"
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", "recipe.yaml", *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=as_in_a_terminal
            )

    def rows(self) -> list[dict[str, float]]:
        """The whole lines of metrics.jsonl."""
        if not self.folder.metrics.exists():
            return []
        lines = self.folder.metrics.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def has_trained(self, step: int) -> bool:
        return any(row["step"] >= step and "train/loss" in row for row in self.rows())

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing was reported for so long: the process is in something slow."""
        return time.time() - self.folder.metrics.stat().st_mtime > seconds

    def wait_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"ended too early: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"nothing happened: {self.log.read_text()}"
            time.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE)

    def newest(self) -> Checkpoint:
        return read_checkpoint(self.folder.checkpoints()[0])


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Run]:
    """A process that does not outlive the test."""
    run = Run(folder, *arguments)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def tensors(tree: Any, path: str = "") -> dict[str, Tensor]:
    """The tensors of nested dicts and lists, by path."""
    if isinstance(tree, Tensor):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return {name: tensor for key, value in items for name, tensor in tensors(value, f"{path}/{key}").items()}


def assert_stopped(run: Run, number: signal.Signals, after: int) -> int:
    """Stopped and saved where it was; returns the step."""
    assert run.exit_code() == 128 + number, run.log.read_text()
    step = int(run.newest().state["step"])
    trained = [int(row["step"]) for row in run.rows() if "train/loss" in row]
    assert step == trained[-1] >= after
    assert f"stopped by {number.name} at step {step}, saved in" in run.log.read_text()
    return step


def test_a_run_stopped_in_training_evaluating_and_sampling_ends_with_the_weights_of_one_never_stopped(
    workplace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(workplace) as run:
        run.wait_until(lambda: run.has_trained(3))
        run.send(signal.SIGTERM)
        first = assert_stopped(run, signal.SIGTERM, after=3)

    slow_evaluation = (f"train.eval_interval={first + 20}", "train.eval_batch_size=1")
    with running(workplace, "--resume", "auto", *slow_evaluation) as run:
        run.wait_until(lambda: run.has_trained(first + 20) and run.is_silent(0.3))
        run.send(signal.SIGINT)
        second = assert_stopped(run, signal.SIGINT, after=first + 20)
        assert second == first + 20
        assert not any(row["step"] == second and "val/loss" in row for row in run.rows())

    endless_sample = (f"train.eval_interval={second + 20}", "train.sample_tokens=100000000")
    with running(workplace, "--resume", "auto", *endless_sample) as run:
        run.wait_until(lambda: run.has_trained(second + 20) and run.is_silent(1.0))
        run.send(signal.SIGTERM)
        third = assert_stopped(run, signal.SIGTERM, after=second + 20)
        assert third == second + 20 < MAX_STEPS

    with running(workplace, "--resume", "auto") as run:
        assert run.exit_code() == 0, run.log.read_text()
        stopped = run.newest()

    elsewhere = tmp_path_factory.mktemp("never-stopped")
    for name in ("recipe.yaml", "corpus.txt"):
        (elsewhere / name).write_bytes((workplace / name).read_bytes())
    with running(elsewhere) as run:
        assert run.exit_code() == 0, run.log.read_text()
        never_stopped = run.newest()

    assert stopped.state["step"] == never_stopped.state["step"] == MAX_STEPS
    one, other = (tensors([end.model, end.training]) for end in (stopped, never_stopped))
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert stopped.state["val_loss"] == never_stopped.state["val_loss"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_a_run_in_the_middle_of_a_step(
    workplace: Path, number: signal.Signals, exit_code: int
) -> None:
    """The step takes minutes; the checkpoint from before it stays the last, and stays whole."""
    with running(workplace, "train.grad_accum_steps=200000") as run:
        run.wait_until(lambda: run.folder.pointed("last"))  # of the evaluation of step 0
        run.send(number)
        run.wait_until(lambda: "send it again to stop at once" in run.log.read_text())
        assert insist(run.process, number) == exit_code
        assert run.newest().state["step"] == 0
        assert "Traceback" not in run.log.read_text()
