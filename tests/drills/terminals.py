"""A command on a terminal of its own, and what it leaves of it: settings, escape sequences, processes."""

import ctypes
import fcntl
import os
import pty
import re
import select
import signal
import termios
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.signals import WATCHED
from patience import PATIENCE

GRACE = 3.0
"""Seconds in which children of an ended process have to end."""
ECHO = 0.6
"""Seconds after which a signal is no echo of the one before it."""
_BECOME_SUBREAPER = 36
_ESCAPE = re.compile(rb"\x1b\[([0-9;?]*)([A-Za-z])")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they are found."""
    assert ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0) == 0


def descendants(pid: int) -> dict[int, str]:
    """Return the names of all processes below one, by number."""
    children: dict[int, dict[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = path.read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            if state != "Z":
                children.setdefault(int(parent), {})[int(path.parent.name)] = name.partition("(")[2]
    found, waiting = dict[int, str](), [pid]
    while waiting:
        below = children.get(waiting.pop(), {})
        found |= below
        waiting += below
    return found


def end_orphans() -> list[str]:
    """Return the names of the processes that outlive their parents by more than a moment, and kill them."""
    end = time.monotonic() + GRACE
    while (left := descendants(os.getpid())) and time.monotonic() < end:
        time.sleep(0.01)
        _reap()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap()
    return sorted(left.values())


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class TerminalProcess:
    """A function that runs in a child with a terminal of its own, in a folder.

    Args:
        call: returns the exit code.
        folder: becomes the working directory, and has the folders of temporary files and of the cache.
    """

    def __init__(self, call: Callable[[], int], folder: Path) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 120))
        self._before = termios.tcgetattr(slave)
        self.output = b""
        self._status: int | None = None
        (folder / "tmp").mkdir(exist_ok=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # until the child listens
        self.pid = os.fork()
        if self.pid == 0:
            _be_the_child(call, folder, slave, self._master)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        self._slave = slave  # stays open, so that the settings can be read when the child has ended

    def read(self) -> None:
        """Take what the process has printed."""
        while select.select([self._master], [], [], 0)[0]:
            self.output += os.read(self._master, 1 << 16)

    def write(self, typed: bytes) -> None:
        """Type something."""
        os.write(self._master, typed)

    def wait_until(self, condition: Callable[[], Any], reading: bool = True) -> bool:
        """Return once something holds; False where the process ends before."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if self.exit_code() is not None:
                return False
            assert time.monotonic() < end, f"nothing happened: {self.text()[-1000:]}"
            if reading:
                self.read()
            time.sleep(0.005)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        if self.exit_code() is None:
            os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the terminal, as a window does: the process gets SIGHUP, and can print no more."""
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self._status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if found else None
        return self._status

    def wait(self) -> int:
        """Wait for the end, and return the exit code, negative for a signal; a process that hangs is killed."""
        end = time.monotonic() + PATIENCE
        while self.exit_code() is None and time.monotonic() < end:
            if self._master >= 0:
                self.read()
            time.sleep(0.005)
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self._master >= 0:
            self.read()
        assert self._status is not None
        return self._status

    def text(self) -> str:
        """Return what was printed."""
        return self.output.decode(errors="replace")

    def disorder(self) -> str:
        """Return what is wrong with the terminal that the process has left; empty if nothing is."""
        if self._master < 0:
            return ""
        if termios.tcgetattr(self._slave) != self._before:
            return "the terminal's settings are changed"
        if b"\x1b" in _ESCAPE.sub(b"", self.output):
            return "half an escape sequence is written"
        state = {"m": b"0", "cursor": b"?25h", "paste": b"?2004l"}
        for parameters, letter in _ESCAPE.findall(self.output):
            kind = {b"?25": "cursor", b"?2004": "paste"}.get(parameters, "m" if letter == b"m" else "")
            if kind:
                state[kind] = parameters + (b"" if kind == "m" else letter)
        return (
            "" if list(state.values()) in ([b"0", b"?25h", b"?2004l"], [b"", b"?25h", b"?2004l"]) else f"left {state}"
        )

    def close(self) -> None:
        """Kill the process, if it still runs, and give the terminal back."""
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for handle in {self._master, self._slave} - {-1}:
            os.close(handle)


def _be_the_child(call: Callable[[], int], folder: Path, slave: int, master: int) -> None:
    code = 70
    try:
        os.close(master)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for handle in (0, 1, 2):
            os.dup2(slave, handle)
        os.close(slave)
        _fresh_streams()
        os.chdir(folder)
        os.environ["TMPDIR"] = str(folder / "tmp")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        code = call()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _fresh_streams() -> None:
    """Have Python's streams see that they are a terminal now."""
    import io
    import sys
    import tempfile

    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        os.fdopen(1, "wb", closefd=False), encoding="utf-8", line_buffering=True
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), encoding="utf-8", line_buffering=True, errors="backslashreplace"
    )


def _flush() -> None:
    import sys

    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.flush()
