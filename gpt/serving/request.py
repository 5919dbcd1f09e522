"""A request: a prompt, how to continue it, and a callback for the answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation import Piece

OnPieces = Callable[[list[Piece]], None]
"""Called from the engine's thread with all new pieces of a step; an exception from it ends the request."""


class QueueFullError(GenerationError):
    """The engine's queue is full; a later request may find room."""


class EngineClosedError(GenerationError):
    """The engine accepts no more requests: it was closed or has failed."""


@dataclass(eq=False)
class Request:
    """A submitted request.

    Attributes:
        prompt: as it was given.
        prompt_ids: its tokens.
        params: how to sample, and where to stop.
        on_pieces: called with the new pieces of each step.
        error: why the request failed; set before its last piece, which has finish "error".
    """

    prompt: str | Sequence[int]
    prompt_ids: list[int]
    params: SamplingParams
    on_pieces: OnPieces = field(repr=False)
    error: BaseException | None = None
