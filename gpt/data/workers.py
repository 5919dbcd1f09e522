"""Apply a function to many items in processes of their own, in order and with bounded memory.

A worker is a fresh interpreter that talks over its standard input and output: it imports nothing of the caller's, such
as torch, and ends when the caller does, however that ends.
"""

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypeVar

from gpt.errors import DataError, GPTError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerLost(DataError):
    """A worker process was killed; what was finished before is not affected."""


PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpt.data.workers import serve; serve()"


def parallel_map(
    function: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Generator[Result, None, None]:
    """Yield the results of a function, in the order of the items; as many items are in memory as there are processes.

    Args:
        function: can be pickled; each worker gets one copy, which it keeps.
        items: can be pickled.
        processes: workers; 1: none, the function is called here.

    Raises:
        GPTError: the function raised it.
        WorkerLost: a worker was killed.
    """
    if processes == 1:
        yield from map(function, items)
        return
    busy: deque[_Worker] = deque()
    with ExitStack() as stack:
        for item in items:
            if len(busy) < processes:
                worker = stack.enter_context(_Worker(function))
                worker.send(item)
            else:
                worker = busy.popleft()
                result = worker.receive()
                worker.send(item)  # before the caller does something with the result
                yield result
            busy.append(worker)
        while busy:
            yield busy.popleft().receive()


class _Worker:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the caller, which ends this process
        )
        self._send(function)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, item: Any) -> None:
        """Have the function applied to an item; the result must be received before the next one is sent."""
        self._send(item)

    def receive(self) -> Any:
        """Wait for the result and return it, or raise what the function raised."""
        assert self._process.stdout is not None
        try:
            error, result = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._ended() from None
        if error is not None:
            raise error
        return result

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            _write(value, self._process.stdin)
        except BrokenPipeError:
            raise self._ended() from None

    def _ended(self) -> Exception:
        code = self._process.wait()
        if code >= 0:
            return RuntimeError(f"a worker ended with exit code {code}; its traceback is above")
        return WorkerLost(
            f"a worker process was ended by signal {-code}, perhaps because memory was short; start again with a "
            "smaller data.workers, and what is finished is kept"
        )


def serve() -> None:
    """Read a function and its items from standard input, and write the results, until the caller ends."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    try:
        function = pickle.load(incoming)
        while True:
            item = pickle.load(incoming)
            try:
                answer: tuple[GPTError | None, Any] = None, function(item)
            except GPTError as error:
                answer = error, None
            _write(answer, outgoing)
    except (EOFError, BrokenPipeError):
        sys.stdout = None  # what is left of an answer cannot be written at exit either


def _write(value: Any, stream: IO[bytes]) -> None:
    pickle.dump(value, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()
