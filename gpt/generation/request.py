"""A request: a prompt, how to continue it, and the chunks of its answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpt.config import SamplingParams
from gpt.generation.tokens import SampledToken
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
        finish: why the sequence ends with this chunk; None while it goes on.
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
