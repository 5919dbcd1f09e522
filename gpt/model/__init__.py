"""The architecture: nothing here trains, samples, caches, reads or writes."""

from gpt.model.gpt import GPT

__all__ = ["GPT"]
