"""`scripts/bench.py`: how fast training and decoding are, here and elsewhere, one module for each measurement."""

from gpt.cli.bench.command import main

__all__ = ["main"]
