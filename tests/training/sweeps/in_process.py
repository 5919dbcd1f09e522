"""A trial of a sweep in the sweep's own process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gpt.cli import train


class InProcess:
    """Stands in for `TrialProcess`: the same command, which has ended when it has started."""

    def __init__(self, folder: Path, exit_code: int) -> None:
        self.folder, self.exit_code, self.process = folder, exit_code, self

    @classmethod
    def start(cls, folder: Path, arguments: Sequence[str]) -> Self:
        return cls(folder, train.main(arguments))

    def stop(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def last_line(self) -> str:
        return "error: its last line"
