"""`explain.py` called in the folder of the trained run, by tests that write elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from gpt.checkpoint import Loaded, load_trained
from gpt.cli import explain


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call it with these options; the newest run below the working directory is the tiny one."""
    monkeypatch.chdir(trained)

    def call(*options: str) -> Result:
        try:
            code = explain.main(options)
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def refuse(run: Run, trained: Path) -> Callable[..., str]:
    """The one line that a mistake gives; nothing is printed beside it and no file is left in the folder."""

    def call(*options: str) -> str:
        before = sorted(trained.rglob("*"))
        code, out, err = run(*options)
        assert code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert sorted(trained.rglob("*")) == before
        return err

    return call


@pytest.fixture
def loaded(trained: Path) -> Loaded:
    """The same run, by the Python functions."""
    return load_trained(trained / "runs/tiny", trained / "runs", torch.device("cpu"))
