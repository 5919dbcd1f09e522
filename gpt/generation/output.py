"""From sampled tokens to pieces of text, and where a sequence ends."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation.decoder import SampledToken
from gpt.generation.text import TextStream

Finish = Literal["length", "stop", "end", "window", "cancelled", "error"]
"""Why a sequence ended: `max_new_tokens`, a stop string, the end token, or the edge of the window. Requests to a server
can also be cancelled, or fail."""


class Piece(NamedTuple):
    """What one sampled token adds to the text after a prompt.

    Attributes:
        row: index of the prompt in the batch.
        text: what may be shown now; empty where it is held back.
        token: the sampled token; None where there is none, as with `max_new_tokens` 0.
        finish: why the sequence ends with this piece; None while it goes on.
    """

    row: int
    text: str
    token: SampledToken | None
    finish: Finish | None


class PieceStream:
    """The pieces of one sequence.

    Args:
        tokenizer: the one the model was trained with.
        params: say where the sequence ends.
        row: its index in the batch.
        prompt_length: in tokens.
        block_size: the model's context length.
        before: the last ids of the prompt, where these were given and may end within a character.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        row: int,
        prompt_length: int,
        block_size: int,
        before: Sequence[int] = (),
    ) -> None:
        self._params, self._row, self._block_size = params, row, block_size
        self._text, self._prompt_length, self._count = TextStream(tokenizer, params.stop), prompt_length, 0
        self._text.begin(before)

    def feed(self, token: SampledToken) -> Piece:
        """Return what one more sampled token adds."""
        self._count += 1
        is_end = token.id == self._params.end_id
        text = "" if is_end else self._text.feed(token.id)
        finish: Finish | None = None
        if is_end:
            finish = "end"
        elif self._text.stopped:
            finish = "stop"
        elif self._count == self._params.max_new_tokens:
            finish = "length"
        elif at_edge(self._prompt_length + self._count, self._block_size, self._params):
            finish = "window"
        return Piece(self._row, text if finish is None else text + self._text.flush(), token, finish)

    def end(self, finish: Finish) -> Piece:
        """Return the last piece of a sequence that ends without a token: the text that was held back."""
        return Piece(self._row, self._text.flush(), None, finish)


def at_edge(length: int, block_size: int, params: SamplingParams) -> bool:
    """Return whether a sequence of `length` tokens, which no longer fits the window, is to end."""
    return params.overflow == "stop" and length > block_size
