"""Ctrl-C, SIGTERM, a closed terminal: one signal saves and stops a run, a later one aborts it."""

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
    """Records the first signal inside this context, for `check`, which raises Interrupted for it.

    A later signal restores the previous handlers and is passed on to them. An echo, which follows
    the first signal at once, does nothing: a shell and a launcher may both pass on the same Ctrl-C.
    A signal that the parent process ignores, as `nohup` and background jobs of scripts do, stays
    ignored.

    A signal to one of the processes that train together stops all of them at the same step.
    """

    def __init__(self, report: Report, world: World = World()) -> None:  # noqa: B008  # without state
        self._report = report
        self._world = world
        self._handlers = ExitStack()
        self._requests = Requests()
        self._received = 0  # the number of the first signal; 0 before there is one

    def __enter__(self) -> Self:
        self._handlers.enter_context(handling(WATCHED, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def check(self) -> None:
        """Raise Interrupted, once, if a signal has arrived in any process."""
        # If the processes got different signals, all of them take the one with the highest number.
        received = self._world.all_reduce_max(self._received)
        if received:
            self._received = 0
            raise Interrupted(received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Record the first signal, ignore its echoes, and abort at a later one."""
        request = self._requests.classify()
        if request is Request.FIRST:
            self._received = signum
            name = signal.Signals(signum).name
            # The signal may have interrupted this process while it wrote another line to the same
            # stream. The stream then raises RuntimeError, and this line is left out.
            with suppress(RuntimeError):
                self._report(f"{name}: saving after this step; send it again to stop at once")
        elif request is Request.LATER:
            self._abort(signum)

    def _abort(self, signum: int) -> None:
        """Send a signal to the handler that was set outside this context."""
        self._handlers.close()
        # `close` does nothing if this signal has interrupted `__exit__` while it was restoring the
        # handlers. Then `_handle` may still be the handler of the signal, which would call this
        # method again. So the default action of the system takes its place, which ends the process.
        if signal.getsignal(signum) == self._handle:
            signal.signal(signum, signal.SIG_DFL)
        signal.raise_signal(signum)
