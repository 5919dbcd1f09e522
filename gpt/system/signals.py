"""Ctrl-C, SIGTERM and a closed terminal: the first signal unwinds a command, which cleans up; a later one kills it."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers
WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
ECHO_SECONDS = 0.5
"""A signal this soon after another is the same request.

`timeout`, closing shells and process managers send it to a process, and once more to the group that it is in.
"""


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

    A signal that is ignored, as under `nohup`, or that the caller handles is left alone, and so is a thread but the
    main one. An error of what cleans up afterwards, because it was interrupted half-way, is not shown.
    """
    usual, requests = (signal.SIG_DFL, signal.default_int_handler), Requests()

    def stop(number: int, frame: FrameType | None) -> None:
        count = requests.count()
        if count == 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if count == 1:
            raise Stopped(number)

    with handling([number for number in WATCHED if signal.getsignal(number) in usual], stop):
        try:
            yield
        except Exception as error:
            if isinstance(error.__context__, Stopped):
                raise error.__context__ from None
            raise


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
