"""A command on a terminal of its own, and what it leaves of it: settings, escape sequences, processes."""

import ctypes
import os
import pty
import re
import select
import signal
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpt.system.signals import WATCHED
from patience import PATIENCE

GRACE = 3.0
"""Seconds in which children of an ended process have to end."""
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
            os.close(self._master)
            _be_the_child(call, folder, slave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        self._slave = slave  # stays open, so that the settings can be read when the child has ended

    def read(self) -> None:
        while self._master >= 0 and select.select([self._master], [], [], 0)[0]:
            self.output += os.read(self._master, 1 << 16)

    def write(self, typed: bytes) -> None:
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
        if self.exit_code() is None:
            os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the terminal, as a window does: the process gets SIGHUP, and can print no more."""
        for handle in {self._master, self._slave} - {-1}:
            os.close(handle)
        self._master = self._slave = -1

    def exit_code(self) -> int | None:
        if self._status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if found else None
        return self._status

    def wait(self) -> int:
        """Wait for the end, and return the exit code, negative for a signal; a process that hangs is killed."""
        end = time.monotonic() + PATIENCE
        while (code := self.exit_code()) is None:
            self.read()
            time.sleep(0.005)
            if time.monotonic() > end:
                self.send(signal.SIGKILL)
        self.read()
        return code

    def text(self) -> str:
        return self.output.decode(errors="replace")

    def disorder(self) -> str:
        """Return what is wrong with the terminal that the process has left; empty if nothing is."""
        if self._master < 0:
            return ""
        if termios.tcgetattr(self._slave) != self._before:
            return "the terminal's settings are changed"
        if b"\x1b" in _ESCAPE.sub(b"", self.output):
            return "half an escape sequence is written"
        colors, cursor, paste = b"0", b"?25h", b"?2004l"
        for parameters, letter in _ESCAPE.findall(self.output):
            if letter == b"m":
                colors = parameters or b"0"
            elif parameters == b"?25":
                cursor = parameters + letter
            elif parameters == b"?2004":
                paste = parameters + letter
        left = (colors, cursor, paste)
        return "" if left == (b"0", b"?25h", b"?2004l") else f"left {left}"

    def close(self) -> None:
        """Kill the process, if it still runs, and give the terminal back."""
        while self.exit_code() is None:
            self.send(signal.SIGKILL)
        self.hang_up()


def _be_the_child(call: Callable[[], int], folder: Path, slave: int) -> None:
    code = 70
    try:
        os.login_tty(slave)
        tempfile.tempdir = None
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            errors = "backslashreplace" if name == "stderr" else None
            stream = open(number, mode, 1, "utf-8", errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)  # it sees that it is a terminal now
            setattr(sys, f"__{name}__", stream)
        os.chdir(folder)
        os.environ["TMPDIR"] = str(folder / "tmp")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        code = call()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
