"""From sampled tokens to chunks of text, and where a sequence ends."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation.text import TextStream
from gpt.generation.tokens import SampledToken

FinishReason = Literal["length", "stop", "end", "window", "cancelled", "error"]
"""Why a sequence ended: `max_new_tokens`, a stop string, the end token, or the edge of the window. A request can also
be cancelled, or fail."""


class TextChunk(NamedTuple):
    """What one sampled token adds to the text after a prompt.

    Attributes:
        row: index of the prompt in the batch.
        text: what may be shown now; empty where it is held back.
        token: the sampled token; None where there is none, as with `max_new_tokens` 0.
        finish: why the sequence ends with this chunk; None while it goes on.
    """

    row: int
    text: str
    token: SampledToken | None
    finish: FinishReason | None


class Detokenizer:
    """Makes the chunks of one sequence.

    Args:
        tokenizer: the one the model was trained with; None: ids are wanted, and text and stop strings are not.
        params: say where the sequence ends.
        row: its index in the batch.
        prompt_length: in tokens.
        block_size: the model's context length.
        before: the last ids of the prompt, where these were given and may end within a character.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        row: int,
        prompt_length: int,
        block_size: int,
        before: Sequence[int] = (),
    ) -> None:
        self._params, self._row, self._block_size = params, row, block_size
        self._prompt_length, self._count = prompt_length, 0
        self._text = None if tokenizer is None else TextStream(tokenizer, params.stop)
        if self._text is not None:
            self._text.begin(before)

    def feed(self, token: SampledToken) -> TextChunk:
        """Return what one more sampled token adds."""
        self._count += 1
        is_end = token.id == self._params.end_id
        text = "" if is_end or self._text is None else self._text.feed(token.id)
        finish: FinishReason | None = None
        if is_end:
            finish = "end"
        elif self._text is not None and self._text.stopped:
            finish = "stop"
        elif self._count == self._params.max_new_tokens:
            finish = "length"
        elif self._params.overflow == "stop" and self._prompt_length + self._count > self._block_size:
            finish = "window"
        return TextChunk(self._row, text if finish is None else text + self._flush(), token, finish)

    def end(self, finish: FinishReason) -> TextChunk:
        """Return the last chunk of a sequence that ends without a token: the text that was held back."""
        return TextChunk(self._row, self._flush(), None, finish)

    def _flush(self) -> str:
        return "" if self._text is None else self._text.flush()
