"""Look into run folders, which anybody may have made and whose disk may hang: no request waits for one for ever."""

import _thread
import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from gpt.extras.serving.http.protocol import APIError
from gpt.system.errors import quoted

LOOK_SECONDS = 5.0
"""What a folder is waited for; a look takes a millisecond."""
AT_A_TIME = 8
"""Folders that are looked into at a time."""
T = TypeVar("T")


class HangingError(APIError):
    """A folder does not answer."""

    def __init__(self, name: str) -> None:
        super().__init__(503, f"the folder of {quoted(name, 100)!r} does not answer; its disk may hang", "model")


class Folders:
    """Calls functions that look into a folder, each in a thread of its own, which cannot keep the process alive.

    While one has not come back, nothing else is asked of its folder: else each request would leave one more thread.
    """

    def __init__(self) -> None:
        self._hanging: set[str] = set()

    async def look(self, name: str, function: Callable[..., T], *arguments: Any, seconds: float | None = None) -> T:
        """Return what a function returns that looks into the folder of this name, or raise HangingError."""
        if name in self._hanging:
            raise HangingError(name)
        future = _start(function, *arguments)
        await asyncio.wait([future], timeout=LOOK_SECONDS if seconds is None else seconds)
        if not future.done():
            self._hanging.add(name)
            future.add_done_callback(partial(self._come_back, name))
            raise HangingError(name)
        return future.result()

    def _come_back(self, name: str, future: "asyncio.Future[Any]") -> None:
        self._hanging.discard(name)
        future.exception()  # which nobody waits for any more

    async def look_into_each(self, names: Iterable[str], function: Callable[[str], T]) -> dict[str, T]:
        """Return what a function returns for each name, without those whose folder hangs or is at fault."""
        turns, found = asyncio.Semaphore(AT_A_TIME), dict[str, T]()

        async def look(name: str) -> None:
            async with turns:
                with suppress(Exception):  # whatever is wrong with a folder, the others are there
                    found[name] = await self.look(name, function, name)

        names = list(names)
        await asyncio.gather(*map(look, names))
        return {name: found[name] for name in names if name in found}


def _start(function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
    """Call a function in a thread, and return its future result."""
    future = asyncio.get_running_loop().create_future()
    # threading.Thread.start would wait, on the event loop, until the thread has had a turn
    _thread.start_new_thread(_settle, (future, partial(function, *arguments)))
    return future


def _settle(future: "asyncio.Future[T]", call: Callable[[], T]) -> None:
    try:
        outcome = partial(future.set_result, call())
    except Exception as error:
        outcome = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the event loop has ended, or is about to
        future.get_loop().call_soon_threadsafe(outcome)
