"""Handle Ctrl-C, SIGTERM and a closed terminal: the first signal saves and stops a run, a later one aborts it."""

import signal
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Self

from gpt.system.distributed import World
from gpt.system.progress import Report
from gpt.system.signals import WATCHED, Requests, handling


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

    A later one, unless it is an echo of the first, restores the previous handlers and goes to them. A signal that the
    parent process ignores, as `nohup` and background jobs of scripts do, stays ignored.

    A signal to one of the processes that train together stops all at the same step.
    """

    def __init__(self, report: Report, world: World = World()) -> None:  # noqa: B008  # without state
        self._report, self._world = report, world
        self._handlers, self._requests, self._received = ExitStack(), Requests(), 0

    def __enter__(self) -> Self:
        self._handlers.enter_context(handling(WATCHED, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def check(self) -> None:
        """Raise Interrupted, once, if a signal has arrived."""
        received = self._world.all_reduce_max(self._received)
        if received:
            self._received = 0
            raise Interrupted(received)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        count = self._requests.count()
        if count == 2:
            self._handlers.close()
            if signal.getsignal(signum) == self._note:  # it came while `__exit__` was closing them
                signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        if count != 1:
            return
        self._received = signum
        # it may have interrupted a line that is being written, as to a stopped terminal
        with suppress(RuntimeError):
            self._report(f"{signal.Signals(signum).name}: saving after this step; send it again to stop at once")
