"""Generation: token sampling, and text from a model."""

from gpt.generation.backends.selection import DecodeOptions, EagerRuntime, Runtime, build_runtime
from gpt.generation.beam import Hypothesis, beam_search
from gpt.generation.generator import (
    Batch,
    Completion,
    TextBatch,
    complete,
    generate,
    generate_tokens,
    stream,
)
from gpt.generation.output import TextChunk
from gpt.generation.tokens import SampledToken

__all__ = [
    "Batch",
    "Completion",
    "DecodeOptions",
    "EagerRuntime",
    "Hypothesis",
    "Runtime",
    "SampledToken",
    "TextBatch",
    "TextChunk",
    "beam_search",
    "build_runtime",
    "complete",
    "generate",
    "generate_tokens",
    "stream",
]
