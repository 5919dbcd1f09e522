"""A sweep whose trials are trained in the test's own process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from gpt.training.sweeps import sweep as sweeps
from training.sweeps.in_process import InProcess


class Trained(InProcess):
    """Notes the arguments of each trial."""

    commands: list[list[str]]

    @classmethod
    def start(cls, folder: Path, arguments: Sequence[str]) -> Self:
        cls.commands.append(list(arguments))
        return super().start(folder, arguments)


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch) -> type[Trained]:
    """Replace the processes; `commands` has the arguments of each."""
    monkeypatch.setattr(sweeps, "TrialProcess", Trained)
    monkeypatch.setattr(sweeps, "POLL_SECONDS", 0)
    Trained.commands = []
    return Trained
