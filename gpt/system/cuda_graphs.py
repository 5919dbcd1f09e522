"""CUDA graphs: kernels that are recorded once and launched together afterward.

Small kernels take longer to launch one by one than to run.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gpt.system.errors import DeviceError, explained

ONE_CAPTURE = threading.Lock()
"""Held while a graph is captured: several threads may use a device, but only one captures."""
MAX_GRAPHS = 128
"""Graphs that are kept for replays: each holds some memory of the device."""
Call = Callable[..., Any]
"""`call(key, function, *arguments)` calls the function, as `ReplayedCalls.call` does."""


class GraphCapturer:
    """Captures graphs on one device, all of them on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # All graphs share their memory for what they compute, since one is replayed at a time.
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def on_own_stream(self) -> Iterator[None]:
        """Queue the kernels that are launched inside this context on the stream for captures.

        Work before a capture that allocates lasting memory runs on it too: autograd, for example,
        accumulates a gradient on the stream on which the gradient was first made. Inside the
        context the device is the current one, since a capture records only the current device.
        """
        with torch.cuda.device(self._device):
            usual = torch.cuda.current_stream()
            # Each stream waits for the other, so that all kernels run in the order of the program.
            self._stream.wait_stream(usual)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                usual.wait_stream(self._stream)

    @contextmanager
    def capture(self, what: str, remedy: str) -> Iterator[torch.cuda.CUDAGraph]:
        """Record the kernels that are launched inside this context, without running them.

        Args:
            what: what is captured, for a message.
            remedy: the setting by which a user does without a graph, for a message.

        Raises:
            DeviceError: something inside the context cannot be held by a graph.
        """
        graph = torch.cuda.CUDAGraph()
        # In the mode `thread_local` other threads may allocate memory during the capture.
        capture = torch.cuda.graph(
            graph, self._pool, self._stream, capture_error_mode="thread_local"
        )
        try:
            with ONE_CAPTURE, self.on_own_stream(), capture:
                yield graph
        except torch.AcceleratorError as error:
            cause = explained(_first_error(error))
            raise DeviceError(f"no CUDA graph of {what}: {cause}; {remedy}") from error


@dataclass(frozen=True)
class Recording:
    """A graph, and what the captured function returned: memory that each replay overwrites."""

    graph: torch.cuda.CUDAGraph
    result: Any


class ReplayedCalls:
    """Calls functions by replays of graphs.

    A function has to launch the same kernels at each call with the same key, and to read and write
    what lives longer than a call at addresses that stay the same.

    Args:
        what, remedy: see `GraphCapturer.capture`.
    """

    def __init__(self, device: torch.device, what: str, remedy: str) -> None:
        self._capturer = GraphCapturer(device)
        self._what = what
        self._remedy = remedy
        self._warmed_up: set[Hashable] = set()
        self._recordings: dict[Hashable, Recording] = {}

    def call(self, key: Hashable, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function; return what it returns, which the next call may overwrite.

        The first call with a key runs as usual, since libraries load kernels and allocate work
        space in it, which a capture cannot record. The second call is captured and then replayed,
        as are all later ones.
        """
        if key in self._recordings:
            recording = self._recordings[key]
        elif key in self._warmed_up:
            recording = self._record(function, arguments)
            self._keep(key, recording)
        else:
            self._warmed_up.add(key)
            with self._capturer.on_own_stream():
                return function(*arguments)
        recording.graph.replay()
        return recording.result

    def _record(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Recording:
        with self._capturer.capture(self._what, self._remedy) as graph:
            result = function(*arguments)
        return Recording(graph, result)

    def _keep(self, key: Hashable, recording: Recording) -> None:
        """Keep a recording; drop the oldest one first if `MAX_GRAPHS` are kept already."""
        if len(self._recordings) == MAX_GRAPHS:
            oldest = next(iter(self._recordings))  # a dict keeps the order of its keys
            del self._recordings[oldest]
        # If this recording is dropped later, its key warms up again. The set would grow forever if
        # it kept the keys of recordings.
        self._warmed_up.discard(key)
        self._recordings[key] = recording


def call_plainly(key: Hashable, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function as `ReplayedCalls.call` does, on a device without graphs."""
    return function(*arguments)


def _first_error(error: BaseException) -> BaseException:
    """Return the error that ended a capture.

    Closing a failed capture raises one more error, which says only that the capture failed. Python
    keeps the error before it as its `__context__`.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error
