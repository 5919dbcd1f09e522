"""Look into run folders, but not for ever: a folder may be on a disk that no longer answers."""

import _thread
import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from gpt.extras.serving.http.protocol import APIError
from gpt.system.errors import quoted

LOOK_SECONDS = 5.0
"""How long a folder is waited for. Normally a look takes a millisecond."""
MAX_LOOKS = 8
"""Most folders that one request looks into at the same time."""
T = TypeVar("T")


class HangingError(APIError):
    """A folder does not answer."""

    def __init__(self, name: str) -> None:
        message = f"the folder of {quoted(name, 100)!r} does not answer; its disk may hang"
        super().__init__(503, message, "model")


class Folders:
    """Calls functions that look into a folder, each in a thread of its own.

    While one has not come back, no other is called for its folder, or each request would leave one
    more thread.
    """

    def __init__(self) -> None:
        self._hanging: set[str] = set()

    async def look(
        self, name: str, function: Callable[..., T], *arguments: Any, seconds: float | None = None
    ) -> T:
        """Call a function that looks into the folder of this name, and return its result.

        Raises:
            HangingError: it has not returned in `seconds` (default: LOOK_SECONDS), or an earlier
                one has not yet.
        """
        if name in self._hanging:
            raise HangingError(name)
        future = _start(function, *arguments)
        timeout = LOOK_SECONDS if seconds is None else seconds
        await asyncio.wait([future], timeout=timeout)
        if not future.done():
            self._hanging.add(name)
            future.add_done_callback(partial(self._come_back, name))
            raise HangingError(name)
        return future.result()

    def _come_back(self, name: str, future: "asyncio.Future[Any]") -> None:
        self._hanging.discard(name)
        # nobody waits for the result any more; asyncio warns of an exception that was never looked
        # at
        future.exception()

    async def look_into_each(
        self, names: Iterable[str], function: Callable[[str], T]
    ) -> dict[str, T]:
        """Call a function for each name, and return the results, in order of the names.

        Names whose folder does not answer, or for which the function raises, are left out.
        """
        names = list(names)
        turns = asyncio.Semaphore(MAX_LOOKS)
        found: dict[str, T] = {}

        async def look(name: str) -> None:
            # whatever is wrong with one folder, the others are to be listed
            async with turns:
                with suppress(Exception):
                    found[name] = await self.look(name, function, name)

        await asyncio.gather(*[look(name) for name in names])
        return {name: found[name] for name in names if name in found}


def _start(function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
    """Call a function in a new thread, and return the future of its result.

    `_thread` is used in place of `threading`: its threads do not keep the process alive, and its
    start does not wait, on the event loop, until the new thread has run.
    """
    future = asyncio.get_running_loop().create_future()
    _thread.start_new_thread(_settle, (future, function, arguments))
    return future


def _settle(
    future: "asyncio.Future[T]", function: Callable[..., T], arguments: tuple[Any, ...]
) -> None:
    """Call a function, and have the event loop set its result, or its exception, in the future."""
    try:
        set_outcome = partial(future.set_result, function(*arguments))
    except Exception as error:
        set_outcome = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the event loop was closed in the meantime
        future.get_loop().call_soon_threadsafe(set_outcome)
