"""`scripts/explain.py`: a model from the inside, one module for each view of it."""

from gpt.cli.explain.command import main

__all__ = ["main"]
