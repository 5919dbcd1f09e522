"""Do a task with many texts in processes of their own, in order and with bounded memory.

A worker is a fresh interpreter that talks over its standard input and output: it imports nothing of the caller's, such
as torch or an unguarded main module, and ends when the caller does, however that ends. Processes of multiprocessing
would import the main module, read pickles, and outlive a caller that is killed.
"""

import json
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gpt.corpora.tasks import Task, task_from_dict
from gpt.errors import DataError

PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpt.corpora.workers import serve; serve()"
DONE, REFUSED = b"+", b"-"
"""First byte of an answer: a result follows, or the message of a DataError."""


class WorkerLost(DataError):
    """A worker process was killed; what was finished before is not affected."""


def parallel_map(task: Task, texts: Iterable[str], processes: int) -> Generator[bytes, None, None]:
    """Yield the results of a task, in the order of the texts; as many texts are in memory as there are processes.

    Args:
        task: each worker has a copy, which it keeps.
        texts: what it is done with.
        processes: workers; 1: none, the task is done here.

    Raises:
        DataError: the task raised it.
        WorkerLost: a worker was killed.
    """
    if processes == 1:
        yield from map(task, texts)
        return
    busy: deque[_Worker] = deque()
    with ExitStack() as stack:
        for text in texts:
            if len(busy) < processes:
                worker = stack.enter_context(_Worker(task))
                worker.send(text)
                busy.append(worker)
                continue
            worker = busy.popleft()
            result = worker.receive()
            # before the caller does something with the result
            worker.send(text)
            busy.append(worker)
            yield result
        while busy:
            yield busy.popleft().receive()


class _Worker:
    def __init__(self, task: Task) -> None:
        root = str(Path(__file__).parents[2])
        # in a session of its own, since Ctrl-C is for the caller, which ends this process
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.send(json.dumps(task.to_dict()))

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, text: str) -> None:
        """Have the task done with a text; its result must be received before the next one is sent."""
        assert self._process.stdin is not None
        try:
            _write(text.encode("utf-8", errors="surrogatepass"), self._process.stdin)
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> bytes:
        """Wait for the result and return it, or raise what the task raised."""
        assert self._process.stdout is not None
        answer = _read(self._process.stdout)
        if answer is None:
            raise self._ended()
        if answer[:1] == REFUSED:
            raise DataError(answer[1:].decode())
        return answer[1:]

    def _ended(self) -> Exception:
        code = self._process.wait()
        if code >= 0:
            return RuntimeError(f"a worker ended with exit code {code}; its traceback is above")
        return WorkerLost(
            f"a worker process was ended by signal {-code}, perhaps because memory was short; start again with a "
            "smaller data.workers, and what is finished is kept"
        )


def serve() -> None:
    """Read a task and its texts from standard input, and write the results, until the caller ends."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    try:
        described = _read(incoming)
        task = None if described is None else task_from_dict(json.loads(described))
        while task is not None and (text := _read(incoming)) is not None:
            try:
                answer = DONE + task(text.decode("utf-8", errors="surrogatepass"))
            except DataError as error:
                answer = REFUSED + str(error).encode()
            _write(answer, outgoing)
    except BrokenPipeError:
        # what is left of an answer cannot be written at exit either
        sys.stdout = None


def _write(message: bytes, stream: IO[bytes]) -> None:
    stream.write(len(message).to_bytes(8, "little"))
    stream.write(message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """Return the next message; None where the other side ended."""
    size = stream.read(8)
    message = stream.read(int.from_bytes(size, "little"))
    return message if len(size) == 8 and len(message) == int.from_bytes(size, "little") else None
