"""Encode many texts in processes of their own, in order and with bounded memory."""

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from types import ModuleType
from typing import Any

from gpt.corpora.text import distinct_code_points
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer
from gpt.errors import DataError

MOST = 61
"""Workers, since Windows can wait for no more; the one process that writes cannot keep up with so many."""


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
    begin = partial(_begin, None if tokenizer is None else tokenizer.to_dict())
    waiting: deque[Future[bytes]] = deque()
    try:
        with ProcessPoolExecutor(min(processes, MOST), get_context("spawn"), begin) as pool:
            for text in texts:
                result = waiting.popleft().result() if len(waiting) == processes else None
                with _apart():
                    waiting.append(pool.submit(_work, text))  # before the caller does something with the result
                if result is not None:
                    yield result
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool:
        raise WorkerLost(
            "a worker process ended, perhaps because memory was short; start again with a smaller data.workers, and "
            "what is finished is kept"
        ) from None


def _work_of(tokenizer: Tokenizer | None) -> Callable[[str], bytes]:
    if tokenizer is None:
        return lambda text: distinct_code_points(text).astype("<u4").tobytes()
    return lambda text: tokenizer.encode_narrow(text).tobytes()


@contextmanager
def _apart() -> Iterator[None]:
    """Within, processes that start are deaf to Ctrl-C, which is for the caller, and to the end of its terminal.

    And they do not import the caller's main module, whose code may have no guard.
    """
    main, has_masks = sys.modules["__main__"], hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP}) if has_masks else set()
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: dict[str, Callable[[str], bytes]] = {}
"""What this process does with a text, where it is a worker."""


def _begin(saved: dict[str, Any] | None) -> None:
    """Make this process a worker, which ends when the caller does, however that ends."""
    Thread(target=_end_with_the_caller, daemon=True).start()
    _worker["work"] = _work_of(tokenizer_from_dict(saved) if saved else None)


def _end_with_the_caller() -> None:
    caller = parent_process()
    assert caller is not None
    caller.join()
    os._exit(1)


def _work(text: str) -> bytes:
    return _worker["work"](text)
