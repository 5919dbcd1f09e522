"""A sweep whose trials are trained in the test's own process."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpt.cli import train
from gpt.training.sweeps import sweep as sweeps


class Trained:
    """Stands in for `TrialProcess`: the same command, which has ended when it has started."""

    commands: list[list[str]]

    def __init__(self, folder: Path, exit_code: int) -> None:
        self.folder, self.exit_code, self.process = folder, exit_code, self

    @classmethod
    def start(cls, folder: Path, arguments: Sequence[str]) -> "Trained":
        cls.commands.append(list(arguments))
        return cls(folder, train.main(arguments))

    def stop(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def last_line(self) -> str:
        return "error: its last line"


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch) -> type[Trained]:
    """Replace the processes; `commands` has the arguments of each."""
    monkeypatch.setattr(sweeps, "TrialProcess", Trained)
    monkeypatch.setattr(sweeps, "POLL_SECONDS", 0)
    Trained.commands = []
    return Trained
