"""Commands that are interrupted on a terminal of their own, and what they leave: files, settings, processes."""

import ctypes
import itertools
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drills.forks import end_with
from drills.leftovers import hidden_files
from gpt.checkpoint import RunFolder, read_checkpoint
from gpt.system.signals import WATCHED
from patience import PATIENCE
from server_process import request

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
            end_with(lambda: _be_the_child(call, folder, slave))
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


def _be_the_child(call: Callable[[], int], folder: Path, slave: int) -> int:
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
    return call()


ECHO = 0.6
"""Seconds after which a signal is no echo of the one before it."""
Ready = Callable[[TerminalProcess, Path], bool]


@dataclass(frozen=True)
class Case:
    """A command to interrupt.

    Attributes:
        name: shown in failures.
        call: runs it, in a folder with tiny.yaml, corpus.txt, big.txt and the run runs/tiny.
        ready: whether to send the signal now.
        typed: what is typed beforehand.
        saves: the run that it trains, and has to save.
        ends: whether the first signal has to end it; the second always has.
        reading: whether the terminal shows what is printed; otherwise it is stopped until the signal, as by Ctrl-S.
        ctrl_c: whether SIGINT ends it.
        ours: whether exit code, output and temporary files are this project's.
        imports: whether it may still be importing modules: then it ends by the signal itself, or has nothing to save.
    """

    name: str
    call: Callable[[], int]
    ready: Ready
    typed: bytes = b""
    saves: str = ""
    ends: bool = True
    reading: bool = True
    ctrl_c: bool = True
    ours: bool = True
    imports: bool = False


class Asked:
    """A condition: the server on the command's terminal has begun to answer a request for an endless text."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None

    def __call__(self, process: TerminalProcess, folder: Path) -> bool:
        port = re.search(r"http://127.0.0.1:(\d+)/v1", process.text())
        if port is None:
            return False
        self._connection = socket.create_connection(("127.0.0.1", int(port[1])))
        self._connection.sendall(request(max_tokens=4_000_000, stream=True))
        return self._connection.recv(1000) != b""


def shown(text: str) -> Ready:
    return lambda process, folder: text in process.text()


def importing(process: TerminalProcess, folder: Path) -> bool:
    """Return whether a script is importing its modules; before, Python itself is starting, and has tracebacks."""
    place = Path("/proc", str(process.pid))  # the same process is this drill's at first, until it becomes the script
    return b"scripts/" in (place / "cmdline").read_bytes() and "pydantic_core" in (place / "maps").read_text()


def after(seconds: float, ready: Ready = lambda process, folder: True) -> Ready:
    """Return a condition that holds so long after another one has held."""
    begin: dict[int, float] = {}

    def has_passed(process: TerminalProcess, folder: Path) -> bool:
        if process.pid not in begin and ready(process, folder):
            begin[process.pid] = time.monotonic()
        return process.pid in begin and time.monotonic() - begin[process.pid] >= seconds

    return has_passed


def training(run: str, word: str = "") -> Ready:
    """Return a condition: a run has metrics with a word."""

    def has_begun(process: TerminalProcess, folder: Path) -> bool:
        metrics = folder / "runs" / run / "metrics.jsonl"
        return metrics.exists() and word in metrics.read_text()

    return has_begun


def runs_below(name: str) -> Ready:
    """Return a condition: a process with this name descends from the command."""
    return lambda process, folder: any(found.startswith(name) for found in descendants(process.pid).values())


def python(*arguments: str) -> Callable[[], int]:
    return lambda: os.execv(sys.executable, [sys.executable, *arguments])


def interrupt(case: Case, place: Path, number: signal.Signals, how: str) -> list[str]:
    """Start a command, send it signals, and return what is wrong afterwards.

    Args:
        case: the command.
        place: a folder of its own.
        number: the signal.
        how: "once"; "at once": several times within a tenth of a second; "twice": until it ends; "closed": by closing
            the terminal.
    """
    process, saved = TerminalProcess(case.call, place), place / "runs" / case.saves
    try:
        if case.typed:
            process.wait_until(lambda: b"> " in process.output)
            process.write(case.typed)
        if not process.wait_until(lambda: case.ready(process, place), case.reading):
            return [f"ended by itself with {process.wait()}: {process.text()[-500:]}"]
        process.hang_up() if how == "closed" else process.send(number)
        for _ in range(5 if how == "at once" else 0):  # one that the process has not taken yet swallows the next
            time.sleep(0.01)
            process.send(number)
        if how == "twice":
            _insist(process, number)
        code = process.wait()
        usual = (128 + number, -number) if how in ("twice", "at once") or case.imports else (128 + number,)
        wrong = [f"{name} is an orphan" for name in end_orphans()]
        if case.ours and (code not in usual or "Traceback" in process.text()):
            wrong.append(f"exit code {code}: {process.text()[-500:]}")
        if how == "twice" or (case.imports and code == -number):
            return wrong + (unsaved(saved) if case.saves and not case.ends else [])
        wrong += [disorder] if (disorder := process.disorder()) else []
        wrong += unsaved(saved, not case.imports) if case.saves else []
        # torch's cache of compiled code is kept on purpose
        temporary = [path.name for path in (place / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
        return wrong + [f"left {name}" for name in (*hidden_files(place), *(temporary if case.ours else ()))]
    finally:
        process.close()


def _insist(process: TerminalProcess, number: signal.Signals) -> None:
    """Send the signal again after the time of an echo, for as long as the process runs; it may be slow to take one."""
    for _ in range(10):
        end = time.monotonic() + ECHO
        process.wait_until(lambda: time.monotonic() > end)  # noqa: B023
        process.send(number)


def converse(call: Callable[[], int], place: Path) -> list[str]:
    """Interrupt an answer and a waiting prompt of a session by Ctrl-C, end it by Ctrl-D, and return what is wrong."""
    process = TerminalProcess(call, place)
    try:
        for prompts, typed in ((1, b"It was\n"), (2, b""), (3, b"\x04")):
            if not process.wait_until(lambda: process.text().count("> ") == prompts):  # noqa: B023
                break
            process.write(typed)
            if prompts == 1:
                process.wait_until(lambda: "It was\x1b[0m" in process.text())
            if prompts < 3:
                process.write(b"\x03")
        code = process.wait()
        wrong = [f"exit code {code}: {process.text()[-500:]}"] if code or "Traceback" in process.text() else []
        return wrong + ([disorder] if (disorder := process.disorder()) else [])
    finally:
        process.close()


def unsaved(path: Path, has_begun: bool = True) -> list[str]:
    """Return what is wrong with the newest checkpoint of a stopped training."""
    run = RunFolder(path)
    lines = run.metrics.read_text().splitlines() if run.metrics.exists() else []
    trained = max((row["step"] for row in map(json.loads, lines) if "train/loss" in row), default=0)
    newest = next(iter(run.checkpoints()), None)
    if newest is None:
        return ["nothing is saved"] if has_begun or trained else []
    saved = read_checkpoint(newest).state["step"]
    if run.pointed("last") != newest or saved < trained:
        return [f"step {trained} was trained, {saved} is saved, the last is {run.pointed('last')}"]
    return []


def try_case(
    case: Case, folder: Path, original: Path, numbers: Sequence[signal.Signals], ways: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Interrupt a command by each signal in each way, in a copy of a folder; yield what was wrong with each."""
    for number, how in itertools.product(numbers, ways):
        if (how == "closed" and number != signal.SIGHUP) or not (case.ends or how == "twice"):
            continue
        if number == signal.SIGINT and not case.ctrl_c:
            continue
        place = folder / "place"
        shutil.copytree(original, place)
        yield f"{case.name}, {number.name} {how}", interrupt(case, place, number, how)
        shutil.rmtree(place)
