"""A request, the chunks of its answer, and its sequence: the tokens so far, and the blocks of its keys and values."""

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
"""Why a sequence ended: `max_new_tokens`, a stop string, the end token, or the edge of the window. A request can also
be cancelled, or fail."""


class TextChunk(NamedTuple):
    """What one sampled token adds to the text after a prompt.

    Attributes:
        row: index of the prompt in the batch.
        text: what may be shown now; empty where it is held back.
        token: the sampled token; None where there is none, as with `max_new_tokens` 0.
        finish: why the sequence ends with this chunk; None before its end.
    """

    row: int
    text: str
    token: SampledToken | None
    finish: FinishReason | None


OnChunks = Callable[[list[TextChunk]], None]
"""Called from the engine's thread with all new chunks of a step; an exception from it ends the request."""


class QueueFullError(GenerationError):
    """The engine's queue is full; a later request may find room."""


class EngineClosedError(GenerationError):
    """The engine accepts no more requests: it was closed or has failed."""


@dataclass(eq=False)
class Request:
    """A prompt to be continued.

    Attributes:
        on_chunks: called with the new chunks of each step; None: who drives the engine receives them.
        row: its index in a batch, which its chunks name.
        error: why the request failed; set before its last chunk, which has finish "error".
    """

    prompt_ids: list[int]
    params: SamplingParams
    on_chunks: OnChunks | None = field(default=None, repr=False)
    row: int = 0
    error: BaseException | None = None


class SequenceState:
    """A request in progress; without a tokenizer no text is wanted.

    Attributes:
        tokens: those of the prompt, and those sampled so far.
        start: where its window begins, the tokens that the model sees.
        table: blocks of the window's keys and values.
        row: its index in the running batch.
        waiting_since: the step since which it has waited for its next token.
        admitted_length: number of its tokens when it was admitted to the batch.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None, block_size: int, pool: BlockPool) -> None:
        self.request, self.params = request, request.params
        self.tokens, self.start = list(request.prompt_ids), 0
        self.table = BlockTable(pool)
        self.row = self.waiting_since = self.admitted_length = 0
        self.random = RandomStream(request.params.seed)
        self.sampled_by = sampling_key(request.params)
        self._window = Window(block_size)
        self._move_window()
        self._longest = len(self.tokens) + request.params.max_new_tokens
        self._text = None if tokenizer is None else TextStream(tokenizer, request.params.stop)
        if self._text is not None:
            self._text.begin(self.tokens)  # which may end within a character

    @property
    def num_cached(self) -> int:
        """Return the number of positions of the window whose keys and values are stored."""
        return len(self.table.tokens)

    @property
    def num_uncached(self) -> int:
        """Return the number of tokens to compute before the next one can be sampled; at least 1."""
        return len(self.tokens) - self.start - self.num_cached

    @property
    def is_new(self) -> bool:
        return len(self.tokens) == len(self.request.prompt_ids)

    @property
    def tokens_before_slide(self) -> int:
        """Return how many tokens can be sampled before the window moves or the sequence ends."""
        return min(self._window.size + 1 - (len(self.tokens) - self.start), self._longest - len(self.tokens))

    def window(self) -> list[int]:
        return self.tokens[self.start :]

    def append(self, sampled: Sequence[SampledToken]) -> list[TextChunk]:
        """Add sampled tokens up to the last of the sequence, and return what each adds to the text."""
        chunks: list[TextChunk] = []
        for token in sampled:
            self.tokens.append(token.id)
            chunks.append(self._chunk(token))
            if chunks[-1].finish is not None:
                break
        self.random.advance(len(chunks))
        if len(self.tokens) - self.start > self._window.size:
            self._move_window()
        return chunks

    def end(self, finish: FinishReason) -> TextChunk:
        """Return the last chunk of a sequence that ends without a token: the text that was held back."""
        return TextChunk(self.request.row, self._flush(), None, finish)

    def _chunk(self, token: SampledToken) -> TextChunk:
        is_end = token.id == self.params.end_id
        text = "" if is_end or self._text is None else self._text.feed(token.id)
        finish: FinishReason | None = None
        if is_end:
            finish = "end"
        elif self._text is not None and self._text.stopped:
            finish = "stop"
        elif len(self.tokens) == self._longest:
            finish = "length"
        elif self.params.overflow == "stop" and len(self.tokens) > self._window.size:
            finish = "window"
        return TextChunk(self.request.row, text if finish is None else text + self._flush(), token, finish)

    def _flush(self) -> str:
        return "" if self._text is None else self._text.flush()

    def _move_window(self) -> None:
        """Forget what is stored if the window begins elsewhere: every position in it moves."""
        start = self._window.start(len(self.tokens))
        if start != self.start:
            self.start = start
            self.table.truncate(0)


class ScheduledWork(NamedTuple):
    """The part of a sequence that a step computes.

    Attributes:
        tokens: the next tokens of its window that are not stored.
        max_samples: how many tokens may be sampled after these, for which blocks are reserved; 0 where more of the
            window has to be computed first.
        copies: blocks to copy before any is written: pairs of a target and a source.
    """

    sequence: SequenceState
    tokens: list[int]
    max_samples: int
    copies: Sequence[tuple[int, int]] = ()
