"""A sequence of a batch: the tokens of a request so far, and the blocks of its keys and values."""

from collections.abc import Sequence
from typing import NamedTuple

from gpt.cache.paged import BlockPool, BlockTable
from gpt.data.tokenizers import Tokenizer
from gpt.generation.backends import Window
from gpt.generation.output import Detokenizer, FinishReason, TextChunk
from gpt.generation.request import Request
from gpt.generation.tokens import RandomStream, SampledToken, sampling_key


class SequenceState:
    """A request in progress.

    Attributes:
        request: the request it answers.
        tokens: those of the prompt, and those sampled so far.
        start: where its window begins, the tokens that the model sees.
        table: blocks of the window's keys and values.
        row: its index in the running batch.
        random: the numbers by which its tokens are sampled.
        sampled_by: see `sampling_key`.
        since: the step since which it has waited for its next token.
        turn: number of its tokens when it was admitted to the batch.

    Args:
        request: the request to answer.
        tokenizer: the model's tokenizer; None: no text is wanted.
        block_size: the model's context length.
        pool: source of the blocks.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None, block_size: int, pool: BlockPool) -> None:
        self.request, self.params = request, request.params
        self.tokens, self.start = list(request.prompt_ids), 0
        self.table = BlockTable(pool)
        self.row = self.since = self.turn = 0
        self.random = RandomStream(request.params.seed if request.seed is None else request.seed)
        self.sampled_by = sampling_key(request.params)
        self._window = Window.build(block_size, request.params.slide_chunk)
        self._move_window()
        self._longest = len(self.tokens) + request.params.max_new_tokens
        before = () if isinstance(request.prompt, str) else self.tokens
        self._detokenizer = Detokenizer(tokenizer, request.params, request.row, len(self.tokens), block_size, before)

    @property
    def stored(self) -> int:
        """Return the number of positions of the window whose keys and values are stored."""
        return len(self.table.tokens)

    @property
    def pending(self) -> int:
        """Return the number of tokens to compute before the next one can be sampled; at least 1."""
        return len(self.tokens) - self.start - self.stored

    @property
    def is_new(self) -> bool:
        """Return whether no token has been sampled yet."""
        return len(self.tokens) == len(self.request.prompt_ids)

    @property
    def room(self) -> int:
        """Return how many tokens can be sampled before the window moves or the sequence ends."""
        return min(self._window.size + 1 - (len(self.tokens) - self.start), self._longest - len(self.tokens))

    def window(self) -> list[int]:
        """Return the tokens that the model sees."""
        return self.tokens[self.start :]

    def append(self, sampled: Sequence[SampledToken]) -> list[TextChunk]:
        """Add sampled tokens up to the last of the sequence, and return what each adds to the text."""
        chunks: list[TextChunk] = []
        for token in sampled:
            self.tokens.append(token.id)
            chunks.append(self._detokenizer.feed(token))
            if chunks[-1].finish is not None:
                break
        self.random.advance(len(chunks))
        if len(self.tokens) - self.start > self._window.size:
            self._move_window()
        return chunks

    def end(self, finish: FinishReason) -> TextChunk:
        """Return the last chunk of a sequence that ends without a token."""
        return self._detokenizer.end(finish)

    def _move_window(self) -> None:
        """Forget what is stored if the window begins elsewhere: every position in it moves."""
        start = self._window.start(len(self.tokens))
        if start != self.start:
            self.start = start
            self.table.truncate(0)


class Chunk(NamedTuple):
    """The part of a sequence that a step computes.

    Attributes:
        sequence: a sequence with reserved blocks.
        tokens: the next tokens of its window that are not stored.
        steps: how many tokens may be sampled after these, for which blocks are reserved; 0 where more of the window
            has to be computed first.
        copies: blocks to copy before any is written: pairs of a target and a source.
    """

    sequence: SequenceState
    tokens: list[int]
    steps: int
    copies: Sequence[tuple[int, int]] = ()
