"""The architecture: nothing here trains, samples, caches, reads or writes."""

from gpt.model.gpt import GPT, eval_mode

__all__ = ["GPT", "eval_mode"]
