"""A sweep whose trials are trained in the test's own process."""

import pytest

from gpt.training.sweeps import sweep as sweeps
from training.sweeps.in_process import Ended, train_here


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the processes; return the arguments of each, as they start."""
    commands: list[list[str]] = []

    def start(folder, arguments) -> Ended:  # type: ignore[no-untyped-def]
        commands.append(list(arguments))
        ended = train_here(folder, arguments)
        (folder / sweeps.CONSOLE).write_text("error: its last line\n\n")
        return ended

    monkeypatch.setattr(sweeps, "start_trial", start)
    monkeypatch.setattr(sweeps, "POLL_SECONDS", 0)
    return commands
