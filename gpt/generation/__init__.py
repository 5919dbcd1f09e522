"""Generation: token sampling, and text from a model."""

from gpt.generation.backends.selection import DecodeOptions, EagerRuntime, Runtime, build_runtime
from gpt.generation.beam import Hypothesis, beam_search
from gpt.generation.decoder import SampledToken
from gpt.generation.generator import (
    Completion,
    TextBatch,
    complete,
    generate,
    generate_tokens,
    stream,
)
from gpt.generation.output import Piece

__all__ = [
    "Completion",
    "DecodeOptions",
    "EagerRuntime",
    "Hypothesis",
    "Piece",
    "Runtime",
    "SampledToken",
    "TextBatch",
    "beam_search",
    "build_runtime",
    "complete",
    "generate",
    "generate_tokens",
    "stream",
]
