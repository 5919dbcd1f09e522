"""Sampling, and text from a model."""

from gpt.generation.generator import generate, generate_tokens, stream, stream_text

__all__ = ["generate", "generate_tokens", "stream", "stream_text"]
