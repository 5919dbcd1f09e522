"""How next-token logits are computed: from the whole window each time, with a cache, or by the native engine.

A backend is asked for the logits after some token sequences. They grow between calls, as a rule by a
token; a backend may use what it computed before. All backends give the same logits, but for rounding.
"""

from gpt.generation.backends.protocol import Backend, Context

__all__ = ["Backend", "Context"]
