"""`scripts/bench.py`: how fast training is, here and elsewhere, one module for each measurement."""

from gpt.cli.bench.command import main

__all__ = ["main"]
