"""Ctrl-C, SIGTERM, a closed terminal: the first saves and stops a run, a later one aborts it."""

import signal
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Self

from gpt.system.distributed import World
from gpt.system.progress import Report
from gpt.system.signals import WATCHED, Request, Requests, handling


class Interrupted(Exception):
    """A signal asked the run to stop.

    Attributes:
        exit_code: 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP, as a shell reports them.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum  # as a shell reports a process that a signal ended


class SignalWatch:
    """Records the first signal inside this context; `check` then raises it where stopping is safe.

    A later signal restores the previous handlers and goes to them, unless it is an echo of the
    first: a shell and a launcher may both pass the same Ctrl-C on. A signal that the parent process
    ignores, as `nohup` and background jobs of scripts do, stays ignored.

    A signal to one of the processes that train together stops all of them at the same step.
    """

    def __init__(self, report: Report, world: World = World()) -> None:  # noqa: B008  # without state
        self._report = report
        self._world = world
        self._handlers = ExitStack()
        self._requests = Requests()
        self._received = 0  # 0 is no signal

    def __enter__(self) -> Self:
        self._handlers.enter_context(handling(WATCHED, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def check(self) -> None:
        """Raise Interrupted, once, if a signal has arrived."""
        # In all processes, since a signal may have come to one of them only.
        received = self._world.all_reduce_max(self._received)
        if received:
            self._received = 0
            raise Interrupted(received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Note the first signal, ignore its echoes, and abort at a later one."""
        request = self._requests.classify()
        if request is Request.FIRST:
            self._received = signum
            name = signal.Signals(signum).name
            # The signal may have interrupted the writing of another line. A stream cannot be
            # written from within its own writing: it raises RuntimeError, and the line is left out.
            with suppress(RuntimeError):
                self._report(f"{name}: saving after this step; send it again to stop at once")
        elif request is Request.LATER:
            self._abort(signum)

    def _abort(self, signum: int) -> None:
        """Send a signal to the handler that it had outside this context."""
        self._handlers.close()
        # The signal may have arrived while `__exit__` was closing the handlers, and `close` does
        # nothing a second time: the handler of this signal may still be the one of this class.
        if signal.getsignal(signum) == self._handle:
            signal.signal(signum, signal.SIG_DFL)
        signal.raise_signal(signum)
