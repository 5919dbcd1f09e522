"""An engine in a thread of its own: any thread submits requests, and this one computes them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation.engine import EngineStats, NewChunks
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.generation.sequence import (
    EngineClosedError,
    FinishReason,
    OnChunks,
    QueueFullError,
    Request,
    TextChunk,
)
from gpt.generation.text import check_ids, encode_prompt, fit_prompt
from gpt.model import GPT
from gpt.system.errors import explained
from gpt.system.progress import Report, print_line

DECODE_OPTIONS = DecodeOptions()
"""The fastest backend, and a cache in float32."""
PREFILL_CHUNK = 128
"""Most prompt tokens computed in a step; with fewer, others wait less for a long prompt."""


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine computes and keeps at a time.

    Attributes:
        max_sequences: most sequences computed at a time.
        max_waiting: most requests that wait besides.
        cache_blocks: number of blocks of 64 positions; None: enough for `max_sequences` full
            windows.
    """

    max_sequences: int = 64
    max_waiting: int = 1024
    cache_blocks: int | None = None


class EngineThread:
    """Answers many requests at a time; each gets the same tokens as it would alone.

    Requests join and leave the batch at every step. Keys and values are stored in blocks of 64
    positions, which are shared by requests with a common prefix, and found again by later requests
    until their memory is needed.

    Attributes:
        failure: the exception that ended the engine, and all requests with finish "error"; None
            while it works.

    Args:
        model: on any device; the native backend copies its weights.
        limits: how much it computes and keeps.
        options: how logits are computed; a narrower cache is faster in a batch.
        report: receives a line when something is compiled, or takes long.
        draft: a smaller model that guesses tokens, see `build_runtime`.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        limits: EngineLimits = EngineLimits(),
        options: DecodeOptions = DECODE_OPTIONS,
        report: Report = print_line,
        draft: GPT | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._block_size = model.config.block_size
        self._vocab_size = model.vocab_size
        self._max_waiting = limits.max_waiting
        runtime = build_runtime(model, options, report, draft)
        # Only this object's thread calls the engine, which has no lock.
        self._engine = runtime.engine(
            tokenizer, limits.max_sequences, PREFILL_CHUNK, limits.cache_blocks
        )
        self.failure: BaseException | None = None
        self._changed = threading.Condition()  # guards the attributes below
        self._submitted: list[Request] = []
        self._cancelled: list[Request] = []
        self._is_closed = False
        self._is_idle = True
        self._stats = self._engine.stats()
        self._thread = threading.Thread(target=self._run, name="serving-engine", daemon=True)
        self._thread.start()

    def submit(
        self, prompt: str | Sequence[int], params: SamplingParams, on_chunks: OnChunks
    ) -> Request:
        """Submit a prompt to be continued; may be called from any thread.

        Return the request, for `cancel`.

        Args:
            prompt: a text, or its token ids; may be empty: it then starts after a line end.
            on_chunks: called from the engine's thread with all new chunks of a step; the last one
                says why the text ends. It must not block. If it raises an exception, the request
                is cancelled and it is not called again.
        """
        if isinstance(prompt, str):
            ids = encode_prompt(self._tokenizer, prompt, params, self._block_size)
        else:
            check_ids(prompt, self._vocab_size)
            ids = fit_prompt(list(prompt), self._tokenizer, params, self._block_size)
        limited = params.limited_to(self._tokenizer.vocab_size)
        request = Request(ids, limited, on_chunks)
        with self._changed:
            if self.failure is not None:
                raise EngineClosedError(f"the engine has failed: {explained(self.failure)}")
            if self._is_closed:
                raise EngineClosedError("the engine is closed")
            if self._stats.waiting + len(self._submitted) >= self._max_waiting:
                raise QueueFullError(
                    f"{self._max_waiting} requests are waiting already; try again later"
                )
            self._submitted.append(request)
            self._changed.notify_all()
        return request

    def cancel(self, request: Request) -> None:
        """End a request before the next step, running or waiting; may be called from any thread."""
        with self._changed:
            self._cancelled.append(request)
            self._changed.notify_all()

    def stats(self) -> EngineStats:
        """Return the current statistics; may be called from any thread."""
        with self._changed:
            waiting = self._stats.waiting + len(self._submitted)
            return self._stats._replace(waiting=waiting)

    def close(self) -> None:
        """Refuse new requests, cancel the others, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        """Compute steps until the engine is closed or fails."""
        try:
            while self._take():
                self._deliver(self._engine.step())
            self._end_all("cancelled")
        except BaseException as error:
            with self._changed:
                self.failure = error
            for request in [*self._engine.requests, *self._submitted]:
                request.error = error
            self._end_all("error")
            raise

    def _take(self) -> bool:
        """Wait for work, and process what other threads have submitted or cancelled.

        Return whether to continue.
        """
        with self._changed:
            self._changed.wait_for(self._has_work)
            submitted = self._submitted
            self._submitted = []
            cancelled = self._cancelled
            self._cancelled = []
            self._is_idle = False
        delivered: list[NewChunks] = []
        for request in submitted:
            delivered += self._engine.add(request)
        for request in cancelled:
            delivered += self._engine.end(request, "cancelled")
        self._deliver(delivered)
        return not self._is_closed

    def _has_work(self) -> bool:
        asked = bool(self._submitted or self._cancelled)
        return asked or self._is_closed or not self._is_idle

    def _deliver(self, delivered: list[NewChunks]) -> None:
        """Publish the current statistics, then pass the chunks to their requests' callbacks."""
        with self._changed:
            self._stats = self._engine.stats()
            self._is_idle = not self._engine.requests
            self._changed.notify_all()
        for request, chunks in delivered:
            assert request.on_chunks is not None
            try:
                request.on_chunks(chunks)
            except Exception:  # whoever reads the answer has gone
                self._engine.end(request, "cancelled")

    def _end_all(self, finish: FinishReason) -> None:
        """End all requests, and refuse new ones."""
        with self._changed:
            submitted = self._submitted
            self._submitted = []
            self._is_closed = True
        delivered = [(request, [TextChunk(0, "", None, finish)]) for request in submitted]
        for request in self._engine.requests:
            delivered += self._engine.end(request, finish)
        self._deliver(delivered)
