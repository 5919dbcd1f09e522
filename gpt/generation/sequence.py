"""A request, the chunks of its answer, and its sequence: the tokens so far and their blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation.paged import BlockPool, BlockTable
from gpt.generation.text import TextStream
from gpt.generation.tokens import RandomStream, SampledToken, Window, sampling_key
from gpt.system.errors import GenerationError

FinishReason = Literal["length", "stop", "end", "window", "cancelled", "error"]
"""Why a sequence ended: `max_new_tokens`, a stop string, the end token, or the edge of the window.

A request can also be cancelled, or fail.
"""


class TextChunk(NamedTuple):
    """What one sampled token adds to the text after a prompt.

    Attributes:
        row: index of the prompt in the batch.
        text: what may be shown now; empty while it may be the beginning of a stop string.
        token: the sampled token; None if no token was sampled, as with `max_new_tokens` 0.
        finish: why the sequence ends with this chunk; None before its end.
    """

    row: int
    text: str
    token: SampledToken | None
    finish: FinishReason | None


OnChunks = Callable[[list[TextChunk]], None]
"""Called from the engine's thread with all new chunks of a step; an exception ends the request."""


class QueueFullError(GenerationError):
    """The engine's queue is full; a later request may find room."""


class EngineClosedError(GenerationError):
    """The engine accepts no more requests: it was closed or has failed."""


@dataclass(eq=False)
class Request:
    """A prompt to be continued.

    Attributes:
        on_chunks: called with the new chunks of each step. If it is None, whoever drives the engine
            gets the chunks as the result of its steps.
        row: the index of the prompt in a batch, which its chunks name.
        error: why the request failed; set before its last chunk, which has finish "error".
    """

    prompt_ids: list[int]
    params: SamplingParams
    on_chunks: OnChunks | None = field(default=None, repr=False)
    row: int = 0
    error: BaseException | None = None


class SequenceState:
    """A request in progress.

    Attributes:
        tokens: the tokens of the prompt, and those sampled so far.
        start: index of the first token of the window, which is what the model sees.
        table: blocks of the window's keys and values.
        row: its index in the running batch.
        waiting_since: the step since which it has waited for its next token.
        admitted_length: number of its tokens when it was admitted to the batch.

    Args:
        tokenizer: None if only token ids are wanted.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        block_size: int,
        pool: BlockPool,
    ) -> None:
        self.request = request
        self.params = request.params
        self.tokens = list(request.prompt_ids)
        self.start = 0
        self.table = BlockTable(pool)
        # The scheduler sets these three when it admits the sequence to the batch.
        self.row = 0
        self.waiting_since = 0
        self.admitted_length = 0
        self.random = RandomStream(request.params.seed)
        self.sampled_by = sampling_key(request.params)
        self._max_length = len(self.tokens) + request.params.max_new_tokens
        self._window = Window(block_size)
        self._move_window()  # a prompt of ids may be longer than the window
        self._text: TextStream | None = None
        if tokenizer is not None:
            self._text = TextStream(tokenizer, request.params.stop)
            # The prompt may end within a character, which the first sampled token completes. The
            # text of the prompt itself is not a part of the answer.
            self._text.begin(self.tokens)

    @property
    def window_length(self) -> int:
        """Return the number of tokens in the window."""
        return len(self.tokens) - self.start

    @property
    def num_cached(self) -> int:
        """Return the number of positions of the window whose keys and values are stored."""
        return len(self.table.tokens)

    @property
    def num_uncached(self) -> int:
        """Return the number of tokens to compute before the next one can be sampled.

        It is at least 1, since the newest token has not been through the model.
        """
        return self.window_length - self.num_cached

    @property
    def is_new(self) -> bool:
        """Return whether no token has been sampled yet."""
        return len(self.tokens) == len(self.request.prompt_ids)

    @property
    def tokens_before_slide(self) -> int:
        """Return how many tokens can be sampled before the window moves or the sequence ends.

        One of them may lie outside the window: it is sampled from a full window, and moves it.
        """
        room_in_window = self._window.size + 1 - self.window_length
        return min(room_in_window, self._max_length - len(self.tokens))

    def window(self) -> list[int]:
        """Return the tokens in the window."""
        return self.tokens[self.start :]

    def append(self, sampled: Sequence[SampledToken]) -> list[TextChunk]:
        """Add sampled tokens, and return what each adds to the text.

        Tokens after the end of the sequence are dropped.
        """
        chunks: list[TextChunk] = []
        for token in sampled:
            self.tokens.append(token.id)
            chunk = self._chunk(token)
            chunks.append(chunk)
            if chunk.finish is not None:
                break
        # Each token was sampled by one random number. Those of dropped tokens stay in the stream.
        self.random.advance(len(chunks))
        if self.window_length > self._window.size:
            self._move_window()
        return chunks

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens that are no part of an answer, such as those of a draft."""
        self.tokens += ids
        self.random.advance(len(ids))
        self._move_window()

    def replace_end(self, begin: int, ids: Sequence[int]) -> None:
        """Replace the tokens from index `begin` on, and forget their keys and values."""
        self.tokens[begin:] = ids
        self.table.truncate(max(0, begin - self.start))
        self._move_window()

    def end(self, finish: FinishReason) -> TextChunk:
        """Return the last chunk of a sequence that ends without a new token.

        Its text is the one that was held back as the possible beginning of a stop string.
        """
        return TextChunk(self.request.row, self._flush(), token=None, finish=finish)

    def _chunk(self, token: SampledToken) -> TextChunk:
        """Return what the newest token adds to the text, and whether the sequence ends with it."""
        if token.id == self.params.end_id:
            # The end token is a mark, and has no text of its own.
            return TextChunk(self.request.row, self._flush(), token, "end")
        text = ""
        if self._text is not None:
            text = self._text.feed(token.id)
        finish = self._finish()
        if finish is not None:
            text += self._flush()
        return TextChunk(self.request.row, text, token, finish)

    def _finish(self) -> FinishReason | None:
        """Return why the sequence ends with its newest token, which is not the end token."""
        if self._text is not None and self._text.stopped:
            return "stop"
        if len(self.tokens) == self._max_length:
            return "length"
        if self.params.overflow == "stop" and len(self.tokens) > self._window.size:
            return "window"
        return None

    def _flush(self) -> str:
        if self._text is None:
            return ""
        return self._text.flush()

    def _move_window(self) -> None:
        """Set where the window begins; if that has changed, forget all keys and values.

        Positions are counted from the beginning of the window, so every key and value changes.
        """
        start = self._window.start(len(self.tokens))
        if start != self.start:
            self.start = start
            self.table.truncate(0)


class ScheduledWork(NamedTuple):
    """What a step computes of one sequence.

    Attributes:
        tokens: the next tokens of its window that are not stored.
        max_samples: how many tokens may be sampled after these; blocks are reserved for them. It is
            0 where more of the window has to be computed before.
        copies: blocks to copy before any is written: pairs of a target and a source.
        draft: guesses at the tokens that follow `tokens`, fewer than `max_samples`. They go through
            the model in the same step, and a token is sampled after each of them too.
    """

    sequence: SequenceState
    tokens: list[int]
    max_samples: int
    copies: Sequence[tuple[int, int]] = ()
    draft: Sequence[int] = ()

    @property
    def input_ids(self) -> list[int]:
        """Return the tokens that go through the model."""
        return [*self.tokens, *self.draft]

    @property
    def num_sampled(self) -> int:
        """Return the number of tokens to sample, each after one of the last input ids."""
        if self.max_samples == 0:
            return 0
        return 1 + len(self.draft)
