"""A short text to look into a model with: a line or so that it writes."""

from gpt.checkpoint import Loaded
from gpt.generation.generator import generate
from gpt.generation.runtime import Runtime
from gpt.system.errors import GenerationError

MAX_CHARACTERS = 100
"""About a line: a picture of its attention weights still fits a page."""


def example_of(loaded: Loaded) -> str:
    """Return a line or so that a model writes, always the same.

    It fits the window, and ends with a whole word if it has several. It is empty if the weights are
    not finite.
    """
    model = loaded.model
    tokenizer = loaded.tokenizer
    try:
        text = generate(
            model,
            tokenizer,
            "",
            runtime=Runtime(model),
            max_new_tokens=MAX_CHARACTERS,
            temperature=0.8,
            seed=1337,
        )
    except GenerationError:
        return ""
    text = text.strip()
    window = model.config.block_size
    max_characters = min(window, MAX_CHARACTERS)
    example = _cut(text, max_characters)
    while len(tokenizer.encode(example)) > window:  # a character may be several tokens
        max_characters = max_characters * 3 // 4
        example = _cut(text, max_characters)
    return example


def _cut(text: str, max_characters: int) -> str:
    """Return the beginning of a text, up to the end of a word if there is one."""
    if len(text) <= max_characters:
        return text
    end = max_characters  # within a word, if there is no white space before
    # The place right behind the limit counts, since white space there ends a whole word.
    for place in range(max_characters + 1):
        if text[place].isspace():
            end = place  # the last one stays
    return text[:end].rstrip()
