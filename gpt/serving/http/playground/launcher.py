"""The process of a training: the ordinary train command, in a session of its own, which may outlive the server."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpt.checkpoint import RunFolder
from gpt.environment import child_environment
from gpt.errors import GPTError
from gpt.files import parse_json, write_atomic
from gpt.plugins import plugin_options

CONSOLE = "console.log"
"""In the run folder: what the command prints."""
LAUNCHED = "launched.json"
"""In the run folder: the process and its command, for a server that is started later."""
LINES, LINE_CHARACTERS = 30, 300
"""How much of the console is shown."""
FULL_BYTES = 1 << 16
"""With less space left, a console may lack its last lines."""
COMMAND = (sys.executable, "-P", "-m", "gpt.cli.train")


class BusyError(GPTError):
    """A training runs already, or the run's name is taken."""


class Launcher:
    """Starts and stops the train command, at most one at a time; the methods block, so they are for threads."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._lock = runs, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._last_lines: list[str] = []
        self.stopping = False
        self.name: str | None = None
        self.command: list[str] = []

    @property
    def running(self) -> bool:
        """Whether the process that was started here last has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None where it runs or nothing was started."""
        return None if self._process is None else self._process.poll()

    def start(self, name: str, arguments: Sequence[str], is_new: bool) -> None:
        """Start the train command with these arguments, which reach no shell, in a run folder that may be new.

        Raises:
            BusyError: another one runs, or the folder is there.
            GPTError: the folder cannot be written, or the process not be started.
        """
        with self._lock:
            if self._closed:
                raise BusyError("the server is being stopped")
            if self.running:
                raise BusyError(f"{self.name} is being trained; stop it first")
            folder, command = self._runs / name, [*COMMAND, *arguments, *plugin_options()]
            try:
                folder.mkdir(parents=True, exist_ok=not is_new)
                process = _launch_noted(command, folder)
            except FileExistsError:
                raise BusyError(f"{folder} is there already; choose another name") from None
            except OSError as error:
                raise GPTError(f"cannot start a training in {folder}: {error.strerror}") from None
            self._process, self.stopping, self._last_lines = process, False, []
            self.name, self.command = name, command

    def stop(self, for_good: bool = False) -> None:
        """Let the process save a checkpoint and end; a second time has no effect. `for_good`: none can be started."""
        with self._lock:
            self._closed = self._closed or for_good
            if self._process is not None and self.running and not self.stopping:
                self.stopping = True
                self._process.send_signal(signal.SIGTERM)  # not SIGINT, which may be ignored where the server runs

    def stop_other(self, name: str) -> bool:
        """Do the same with the process that an earlier server started; return whether it is known."""
        pid = launched_process(self._runs / name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return pid is not None

    def lines(self, name: str) -> list[str]:
        folder = self._runs / name
        lines = last_lines(folder / CONSOLE)
        if name == self.name and self._process is not None and not self.running:
            self._last_lines = self._last_lines or [*lines, *self._full_disk(lines)]
            _remove_unless_begun(folder)
            return self._last_lines
        return lines

    def _full_disk(self, lines: Sequence[str]) -> list[str]:
        """Return why a training failed that could not say it, since the disk that takes its console is full."""
        reason = os.strerror(errno.ENOSPC)
        if not self.exit_code or any(reason in line for line in lines[-1:]):
            return []
        is_full = shutil.disk_usage(self._runs).free < FULL_BYTES
        return [f"error: the disk of {self._runs} is full: {reason}; make room, and go on"] if is_full else []


def launched_process(folder: Path) -> int | None:
    """Return the process that trains a run if a server started it, on systems that tell the command of a process.

    The number alone is not enough: it may be that of another process by now.
    """
    try:
        launched = parse_json((folder / LAUNCHED).read_text(encoding="utf-8"))
        pid, command = int(launched["pid"]), [str(part) for part in launched["command"]]
        actual = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_it = actual.removesuffix(b"\0").split(b"\0") == [os.fsencode(part) for part in command]
    return pid if is_it and RunFolder(folder).is_being_trained() else None


def last_lines(file: Path) -> list[str]:
    """Return the last lines of a console; none where there is no file."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - LINES * LINE_CHARACTERS))
            lines = opened.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line[:LINE_CHARACTERS] for line in lines[-LINES:]]


def _launch_noted(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that a later server finds by what is noted in a run folder; without the note, none is left."""
    process = None
    try:
        _note(folder, 0, command)  # a disk that is full is found out before anything runs
        with (folder / CONSOLE).open("ab") as console:
            process = _launch(command, console.fileno())
        _note(folder, process.pid, command)
    except OSError:
        if process is not None:
            process.kill()
            process.wait()
        _remove_unless_begun(folder)
        raise
    return process


def _note(folder: Path, pid: int, command: Sequence[str]) -> None:
    write_atomic(folder / LAUNCHED, json.dumps({"pid": pid, "command": command}).encode())


def _launch(command: Sequence[str], console: int) -> subprocess.Popen[bytes]:
    """Start a process that no signal to the server's terminal reaches, and whose `gpt` is this one."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=console,
        stderr=console,
        start_new_session=True,
        env=child_environment(),
    )


def _remove_unless_begun(folder: Path) -> None:
    """Remove the folder of a training that wrote nothing of its own, such as one without data."""
    if not (folder / "config.yaml").exists():
        for name in (CONSOLE, LAUNCHED):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
