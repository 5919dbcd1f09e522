"""A request: what was asked for, and who is told of the answer."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpt.config import SamplingParams
from gpt.errors import GenerationError
from gpt.generation import Piece

OnPieces = Callable[[list[Piece]], None]
"""Called from the engine's thread with all new pieces of a step; what it raises ends the request."""


class QueueFullError(GenerationError):
    """As many requests wait as the engine accepts; a later one may find room."""


class EngineClosedError(GenerationError):
    """The engine accepts no more requests: it was closed, or has failed."""


@dataclass(eq=False)
class Request:
    """What was submitted.

    Attributes:
        prompt: as it was given.
        prompt_ids: its tokens.
        params: how to sample, and where to stop.
        on_pieces: is called with each new piece.
        error: why it failed, before its last piece has finish "error".
    """

    prompt: str
    prompt_ids: list[int]
    params: SamplingParams
    on_pieces: OnPieces = field(repr=False)
    error: BaseException | None = None
