"""Handle Ctrl-C, SIGTERM and a closed terminal: the first signal saves and stops a run, a second one aborts it."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from gpt.distributed import World
from gpt.progress import Report


class Interrupted(Exception):
    """A signal asked the run to stop.

    Attributes:
        exit_code: 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP, as a shell reports them.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class SignalWatch:
    """Records the first signal inside this context; `check` then raises it where stopping is safe.

    The first signal also restores the previous handlers, so that a second one aborts. A signal that the
    parent process ignores, as `nohup` and background jobs of scripts do, stays ignored.

    Args:
        report: takes a line when a signal arrives.
        world: the processes that train together: a signal to one of them stops all at the same step.
    """

    WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self, report: Report, world: World = World()) -> None:  # noqa: B008  # without state
        self._report, self._world = report, world
        self._former: dict[int, Any] = {}
        self._received = 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python lets only the main thread set handlers
            watched = [number for number in self.WATCHED if signal.getsignal(number) is not signal.SIG_IGN]
            self._former = {number: signal.signal(number, self._note) for number in watched}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def check(self) -> None:
        """Raise, once, if a signal has arrived.

        Raises:
            Interrupted: one has arrived.
        """
        received = self._world.max(self._received)
        if received:
            self._received = 0
            raise Interrupted(received)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._received = signum
        self._restore()
        self._report(f"{signal.Signals(signum).name}: saving after this step; send it again to stop at once")

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
