"""A sequence of a batch: the tokens of a request so far, and the blocks of its keys and values."""

from typing import NamedTuple

from gpt.cache.paged import BlockPool, BlockTable
from gpt.data.tokenizers import Tokenizer
from gpt.generation import Piece, SampledToken
from gpt.generation.backends import Window
from gpt.generation.decoder import RandomStream
from gpt.generation.output import Finish, PieceStream
from gpt.serving.request import Request


class Sequence:
    """A request in progress.

    Attributes:
        request: the request it answers.
        tokens: those of the prompt, and those sampled so far.
        start: where its window begins, the tokens that the model sees.
        table: blocks of the window's keys and values.
        row: its index in the running batch.
        random: the numbers by which its tokens are sampled.
        since: the step since which it has waited for its next token.
        turn: number of its tokens when it was admitted to the batch.

    Args:
        request: the request to answer.
        tokenizer: the model's tokenizer.
        block_size: the model's context length.
        pool: source of the blocks.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, block_size: int, pool: BlockPool) -> None:
        self.request, self.params = request, request.params
        self.tokens, self.start = list(request.prompt_ids), 0
        self.table = BlockTable(pool)
        self.row = self.since = self.turn = 0
        self.random = RandomStream(request.params.seed)
        self._window = Window.build(block_size, request.params.slide_chunk)
        before = () if isinstance(request.prompt, str) else self.tokens
        self._pieces = PieceStream(tokenizer, request.params, 0, len(self.tokens), block_size, before)

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

    def window(self) -> list[int]:
        """Return the tokens that the model sees."""
        return self.tokens[self.start :]

    def append(self, token: SampledToken) -> Piece:
        """Add a sampled token, move the window if necessary, and return what the token adds to the text."""
        self.random.advance(1)
        self.tokens.append(token.id)
        start = self._window.start(len(self.tokens))
        if start != self.start:
            self.start = start
            self.table.truncate(0)
        return self._pieces.feed(token)

    def end(self, finish: Finish) -> Piece:
        """Return the last piece of a sequence that ends without a token."""
        return self._pieces.end(finish)


class Chunk(NamedTuple):
    """The part of a sequence that a step computes.

    Attributes:
        sequence: a sequence with reserved blocks.
        tokens: the next tokens of its window that are not stored.
        samples: whether these are the last ones, so that a token is sampled after them.
    """

    sequence: Sequence
    tokens: list[int]
    samples: bool
