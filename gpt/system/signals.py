"""Ctrl-C, SIGTERM, a closed terminal: the first signal unwinds a command, a later one kills it."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
WATCHED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Signals that ask a process to stop; Windows has no SIGHUP."""
ECHO_SECONDS = 0.5
"""A signal this soon after another is the same request.

`timeout`, closing shells and process managers send it to a process, and once more to the group that
it is in.
"""


class Stopped(SystemExit):
    """A signal asked the command to stop.

    Unless `run_command` catches it, it ends the process, with the exit code that shells report.
    """

    code: int  # 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


class Request(Enum):
    """What a signal means, after those that have arrived before it."""

    FIRST = "first"  # stop, and clean up
    ECHO = "echo"  # the first one once more: `timeout` and shells send two for one request
    LATER = "later"  # stop at once: whoever sent the first one has lost patience


class Requests:
    """Tells a second request to stop from an echo of the first."""

    def __init__(self) -> None:
        self._first_at: float | None = None

    def classify(self) -> Request:
        """Return what a signal means that has arrived just now, and remember it."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            return Request.FIRST
        if now - self._first_at < ECHO_SECONDS:
            return Request.ECHO
        return Request.LATER


class _Unwinder:
    """A handler that raises `Stopped` at the first request; a later one kills the process."""

    def __init__(self) -> None:
        self._requests = Requests()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        request = self._requests.classify()
        if request is Request.FIRST:
            raise Stopped(number)
        if request is Request.LATER:
            # By the system's default the signal kills the process, which then has the right status.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def unwinding() -> Iterator[None]:
    """Let the first signal inside this context raise `Stopped`, and a later one kill the process.

    A signal that is ignored, as under `nohup`, or that the caller handles is left alone. Outside of
    the main thread nothing changes. If the interrupted work fails while it cleans up, that error is
    not shown: `Stopped` is raised all the same.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    unhandled = [number for number in WATCHED if signal.getsignal(number) in usual]
    with handling(unhandled, _Unwinder()):
        try:
            yield
        except Exception as error:
            # Python keeps the exception that was being handled when this one was raised.
            if isinstance(error.__context__, Stopped):
                raise error.__context__ from None
            raise


@contextmanager
def handling(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Handle signals by another handler inside this context, unless they are ignored.

    Python lets only the main thread set handlers: in another thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in numbers}
    former = {number: found for number, found in handlers.items() if found is not signal.SIG_IGN}
    for number in former:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, found in former.items():
            signal.signal(number, found)
