"""An answer as a stream of server-sent events, as it grows."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi.responses import StreamingResponse

from gpt.serving.http.answer import Answer
from gpt.serving.http.errors import APIError

CHUNK_SECONDS = 0.03
"""Least time between two chunks of a stream: a reader sees no difference, and fewer take less from the computation.

The first chunk and the last do not wait.
"""
UNHURRIED_STREAMS = 8
"""With more sequences this time grows in proportion: all streams together send a bounded number of chunks."""
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # keeps proxies from buffering the events


async def parts(answer: Answer) -> AsyncIterator[dict[str, Any]]:
    """Yield the new parts of an answer's choices, see `Choice.take`.

    Raises:
        APIError: a choice ended early.
    """
    clock = asyncio.get_running_loop().time
    next_time = clock()  # the first token is sent at once
    while True:
        answer.changed.clear()
        finished = answer.finished
        for choice in answer.choices:
            if (part := choice.take()) is not None:
                yield part
                next_time = clock() + CHUNK_SECONDS * max(1.0, answer.running_beside / UNHURRIED_STREAMS)
        answer.check()
        if finished:
            return
        await answer.changed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(next_time):
                await answer.ended.wait()


def stream(bodies: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Return a response that sends bodies as they come, and marks the end."""
    return StreamingResponse(_encode(bodies), headers=HEADERS, media_type="text/event-stream")


async def _encode(bodies: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield the events; an error becomes one too, since the status was sent long ago."""
    try:
        async for body in bodies:
            yield _event(body)
    except APIError as error:
        yield _event(error.body)
    yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
