"""Generation: token sampling, and text from a model; `runtime` prepares a model for it."""

from gpt.generation.generator import Batch, TextBatch, generate, generate_tokens, stream
from gpt.generation.request import TextChunk
from gpt.generation.tokens import SampledToken

__all__ = [
    "Batch",
    "SampledToken",
    "TextBatch",
    "TextChunk",
    "generate",
    "generate_tokens",
    "stream",
]
