"""Ctrl-C, SIGTERM and a closed terminal: the first signal unwinds a command, which cleans up; a later one kills it."""

import os
import re
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
AGAIN_SECONDS = 0.01
"""Time after which a signal comes again whose exception Python has ignored."""


class Stopped(SystemExit):
    """A signal asked the command to stop; without `run_command` it ends the process, with the code of a shell.

    Attributes:
        code: 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP.
    """

    code: int

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

    def forget(self) -> None:
        """Take the next signal for the first."""
        self._first = None


@contextmanager
def unwinding() -> Iterator[None]:
    """Let the first signal inside this context raise `Stopped`, and a later one kill the process.

    Both end the processes that this one has started in its session, such as compilers. While a module is imported,
    the first one kills too: there is nothing to clean up, and importing code may swallow an exception. A signal
    that is ignored, as under `nohup`, or that the caller handles is left alone, and so is a thread but the main one.
    One that arrives where Python ignores exceptions, as in `__del__`, comes again a moment later.
    An error of what cleans up afterwards, because it was interrupted half-way, is not shown.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    requests = Requests()

    def stop(number: int, frame: FrameType | None) -> None:
        count = requests.count()
        if count == 0:
            return
        end_children()
        if count == 2 or _is_importing(frame):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise Stopped(number)

    with (
        handling([number for number in WATCHED if signal.getsignal(number) in usual], stop),
        _repeating(requests),
    ):
        try:
            yield
        except Exception as error:
            if isinstance(error.__context__, Stopped):
                raise error.__context__ from None
            raise


@contextmanager
def _repeating(requests: Requests) -> Iterator[None]:
    """Send a signal again inside this context whose `Stopped` was raised where Python ignores exceptions."""
    former = sys.unraisablehook
    timers = dict[threading.Timer, int]()

    def take(ignored: "sys.UnraisableHookArgs") -> None:
        if isinstance(ignored.exc_value, Stopped):
            requests.forget()
            number = ignored.exc_value.code - 128
            timer = threading.Timer(AGAIN_SECONDS, _send_to_main, [number])
            timers[timer] = number
            timer.start()
        else:
            former(ignored)

    sys.unraisablehook = take
    waiting = list[threading.Timer]()
    try:
        yield
    finally:
        sys.unraisablehook = former
        waiting += [timer for timer in timers if timer.is_alive()]
        for timer in waiting:
            timer.cancel()
    if waiting:
        raise Stopped(timers[waiting[0]])


def _send_to_main(number: int) -> None:
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        signal.raise_signal(number)
    else:
        signal.pthread_kill(main, number)  # which wakes it, too


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
    """Send SIGTERM to the processes that this one has started, and to theirs, where Linux lists them.

    Those of other sessions are left alone. They are given a moment, in which compilers remove their temporary files:
    `subprocess.run` kills what it runs when an exception ends it.
    """
    stopped: set[int] = set()
    while new := _descendants() - stopped:  # a process that is stopped starts no others
        for pid in new:
            _send(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _send(pid, signal.SIGTERM)
        _send(pid, signal.SIGCONT)
    end, ending = time.monotonic() + GRACE_SECONDS, set(filter(_ends, stopped))
    while ending & _descendants() and time.monotonic() < end:
        time.sleep(0.005)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _ends(pid: int) -> bool:
    """Return whether SIGTERM ends a process; Python's resource tracker ignores it, and ends after its parent."""
    with suppress(OSError):
        ignored = re.search(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(errors="replace"), re.MULTILINE)
        return ignored is not None and not int(ignored[1], 16) >> (signal.SIGTERM - 1) & 1
    return False


def _descendants() -> set[int]:
    """Return the processes of this session that descend from this one; none where there is no /proc."""
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
