"""The processes of a sweep: the ordinary train command, one at a time on each device."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt.environment import child_environment

COMMAND = (sys.executable, "-P", "-m", "gpt.cli.train")
CONSOLE = "console.log"
"""In the run folder of a trial: what the command prints."""


@dataclass
class TrialProcess:
    """A train command that runs in the background, in a session of its own: no signal of a terminal reaches it."""

    folder: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, arguments: Sequence[str]) -> "TrialProcess":
        """Start a train command that prints into the console of `folder`.

        Raises:
            OSError: the folder cannot be written, or the process not be started.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / CONSOLE).open("ab") as console:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env=child_environment(),
            )
        return cls(folder, process)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self.process.poll()

    def stop(self) -> None:
        """Let the process save a checkpoint and end; a second call ends it at once."""
        if self.exit_code is None:
            self.process.send_signal(signal.SIGTERM)

    def last_line(self) -> str:
        """Return the last line of the console."""
        try:
            lines = (self.folder / CONSOLE).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
