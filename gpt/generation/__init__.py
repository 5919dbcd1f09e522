"""Sampling, and text from a model."""

from gpt.generation.beam import Hypothesis, beam_search
from gpt.generation.decoder import Drawn
from gpt.generation.generator import (
    Completion,
    DecodeOptions,
    Piece,
    build_backend,
    complete,
    generate,
    generate_tokens,
    stream,
    stream_pieces,
    stream_text,
)
from gpt.generation.scoring import Score, score_text

__all__ = [
    "Completion",
    "DecodeOptions",
    "Drawn",
    "Hypothesis",
    "Piece",
    "Score",
    "beam_search",
    "build_backend",
    "complete",
    "generate",
    "generate_tokens",
    "score_text",
    "stream",
    "stream_pieces",
    "stream_text",
]
