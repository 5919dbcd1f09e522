"""Encode many texts in processes of their own, in order and with bounded memory.

A worker is a fresh interpreter that talks over its standard input and output: it imports nothing of the caller's, such
as torch or an unguarded main module, and ends when the caller does, however that ends. Processes of multiprocessing
would import the main module, read pickles, and outlive a caller that is killed.
"""

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gpt.corpora.text import distinct_code_points
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer
from gpt.errors import DataError

PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpt.corpora.workers import serve; serve()"
DONE, REFUSED = b"+", b"-"
"""First byte of an answer: a result follows, or the message of a DataError."""


class WorkerLost(DataError):
    """A worker process was killed; what was finished before is not affected."""


def map_texts(tokenizer: Tokenizer | None, texts: Iterable[str], processes: int) -> Generator[bytes, None, None]:
    """Yield, in the order of the texts, the ids of each as `encode_narrow` gives them, or its characters.

    As many texts are in memory as there are processes.

    Args:
        tokenizer: each worker has a copy, which it keeps; None: the distinct code points are found, as uint32.
        processes: workers; 1: none, the work is done here.

    Raises:
        DataError: a text cannot be encoded.
        WorkerLost: a worker was killed.
    """
    if processes == 1:
        yield from map(_work_of(tokenizer), texts)
        return
    busy: deque[_Worker] = deque()
    with ExitStack() as stack:
        for text in texts:
            if len(busy) < processes:
                worker = stack.enter_context(_Worker(tokenizer))
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


def _work_of(tokenizer: Tokenizer | None) -> Callable[[str], bytes]:
    if tokenizer is None:
        return lambda text: distinct_code_points(text).astype("<u4").tobytes()
    return lambda text: tokenizer.encode_narrow(text).tobytes()


class _Worker:
    def __init__(self, tokenizer: Tokenizer | None) -> None:
        root = str(Path(__file__).parents[2])
        # in a session of its own, since Ctrl-C is for the caller, which ends this process
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.send(json.dumps(tokenizer and tokenizer.to_dict()))

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, text: str) -> None:
        """Give it a text, whose result must be received before the next one is sent."""
        assert self._process.stdin is not None
        try:
            _write(text.encode("utf-8", errors="surrogatepass"), self._process.stdin)
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> bytes:
        """Wait for the result and return it, or raise what the worker raised."""
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
    """Read a tokenizer, or null, and texts from standard input, and write the results, until the caller ends."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    try:
        if (described := _read(incoming)) is None:
            return
        saved = json.loads(described)
        work = _work_of(saved and tokenizer_from_dict(saved))
        while (text := _read(incoming)) is not None:
            try:
                answer = DONE + work(text.decode("utf-8", errors="surrogatepass"))
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
