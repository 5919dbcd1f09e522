"""Ctrl-C, SIGTERM and a closed terminal: the first signal unwinds a command, which cleans up; a later one kills it."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers
WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
ECHO_SECONDS = 0.5
"""A signal this soon after another one is the same request.

`timeout`, closing shells and process managers send it to a process, and once more to the group that it is in.
"""
GRACE_SECONDS = 1.0
"""Time for which a command waits for the processes that it has ended."""


class Stopped(SystemExit):
    """A signal asked the command to stop; without `run_command` it ends the process, with the code of a shell."""

    code: int  # 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


class Requests:
    """Tells a second request to stop from an echo of the first."""

    def __init__(self) -> None:
        self._first: float | None = None

    def count(self) -> int:
        """Take a signal; return 1 if it is the first, 0 if it is an echo of the first, 2 if it is a later request."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return 1
        return 0 if now - self._first < ECHO_SECONDS else 2


@contextmanager
def unwinding() -> Iterator[None]:
    """Let the first signal inside this context raise `Stopped`, and a later one kill the process.

    Both end the processes that this one has started in its session, such as compilers. The first one kills too where
    an exception would be lost: while a module is imported, and where Python ignores exceptions, as in `__del__`. A
    signal that is ignored, as under `nohup`, or that the caller handles is left alone, and so is a thread but the main
    one. An error of what cleans up afterwards, because it was interrupted half-way, is not shown.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    requests, ignore = Requests(), sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> None:
        count = requests.count()
        if count == 0:
            return
        end_children()
        if count == 2 or _is_importing(frame):
            _die(number)
        raise Stopped(number)

    def die_if_stopped(ignored: "sys.UnraisableHookArgs") -> None:
        if isinstance(ignored.exc_value, Stopped):
            _die(ignored.exc_value.code - 128)
        ignore(ignored)

    with handling([number for number in WATCHED if signal.getsignal(number) in usual], stop):
        sys.unraisablehook = die_if_stopped
        try:
            yield
        except Exception as error:
            if isinstance(error.__context__, Stopped):
                raise error.__context__ from None
            raise
        finally:
            sys.unraisablehook = ignore


def _die(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@contextmanager
def handling(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Handle signals by another handler inside this context, unless they are ignored or this is not the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    former = {number: signal.getsignal(number) for number in numbers if in_main}
    changed = [number for number, found in former.items() if found is not signal.SIG_IGN]
    for number in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, former[number])


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def end_children() -> None:
    """Send SIGTERM to the processes of this session that descend from this one, where Linux lists them.

    They are given a moment, in which compilers remove their temporary files: `subprocess.run` kills what it runs when
    an exception ends it.
    """
    ending, end = _descendants(), time.monotonic() + GRACE_SECONDS
    for pid in ending:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    while ending & _descendants() and time.monotonic() < end:
        time.sleep(0.005)


def _descendants() -> set[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            state, parent, _, session, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(session) == os.getsid(0) and state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, waiting = set[int](), [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found
