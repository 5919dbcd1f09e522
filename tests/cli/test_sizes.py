"""Sizes beyond any memory: one line before anything is allocated or written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt.cli import evaluate, sample, train
from gpt.cli.command import run_command


@pytest.mark.parametrize(
    "override",
    [
        "model.n_embd=2000000000",
        "model.n_layer=1000000000",
        "model.mlp_width=10000000000000",
        "train.batch_size=1000000000",
        "train.grad_accum_steps=1000000000",
    ],
)
def test_a_training_step_beyond_memory_is_refused(
    override: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml", override]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: a training step needs at least ")
    assert last.endswith("available; lower train.batch_size, model.block_size or the size of the model")
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    ("command", "options", "needs"),
    [
        (sample, ["--prompt", "It", "--beam", "1000000000"], "a fp32 cache of 1,000,000,000 sequences needs at least"),
        (evaluate, ["--protocol", "random", "--batch-size", "1000000000"], "a forward pass over 1,000,000,000 sequ"),
    ],
)
def test_a_batch_beyond_memory_is_refused(
    command: object,
    options: list[str],
    needs: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    assert command.main([*options, "--checkpoint", "runs/tiny", "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith(f"error: {needs}")


def test_samples_are_made_as_they_are_printed(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred million of them are no list: the reader of the output may leave after the first."""

    def leave(*arguments: object) -> None:
        raise BrokenPipeError

    monkeypatch.chdir(trained)
    monkeypatch.setattr("gpt.cli.sample_writers.TextWriter.take", leave)
    options = ["--checkpoint", "runs/tiny", "--prompt", "It", "--num-samples", "100000000"]
    with monkeypatch.context() as patch:
        patch.setattr("gpt.cli.command._silence_output", lambda: None)
        assert sample.main(options) == 0
    assert capsys.readouterr().out == "It"


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(1 << 50), lambda: np.ones(1 << 50), lambda: [0] * (1 << 60)],
    ids=["torch", "numpy", "python"],
)
def test_an_allocation_that_fails_is_one_line(
    allocate: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(lambda: len(allocate())) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: out of memory; lower the batch or the sizes of the model (")
    assert err.count("\n") == 1


def test_another_error_of_torch_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        run_command(lambda: len(torch.ones(2).reshape(3)))
