"""A short text to look into a model with: a line or so that it writes."""

from gpt.checkpoint import Loaded
from gpt.generation.generator import generate
from gpt.generation.runtime import Runtime
from gpt.system.errors import GenerationError

MOST_CHARACTERS = 100


def example_of(loaded: Loaded) -> str:
    """Return a line or so that a model writes, always the same; empty where its weights are not finite.

    It fits the window, and ends with a word where it has several.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    settings = {"max_new_tokens": MOST_CHARACTERS, "temperature": 0.8, "seed": 1337}
    try:
        text = generate(model, tokenizer, "", runtime=Runtime(model), **settings).strip()
    except GenerationError:
        return ""
    most = min(model.config.block_size, MOST_CHARACTERS)
    while len(tokenizer.encode(_cut(text, most))) > model.config.block_size:
        most = most * 3 // 4
    return _cut(text, most)


def _cut(text: str, most: int) -> str:
    """Return the beginning of a text, at most `most` characters, up to the end of a word if there is one."""
    ends = [place for place in range(min(most + 1, len(text))) if text[place].isspace()]
    return text if len(text) <= most else text[: max(ends, default=most)].rstrip()
