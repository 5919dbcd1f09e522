"""A short text to look into a model with: a line or so of its last sample, or else one that it writes."""

import re
from pathlib import Path

from gpt.checkpoint import Loaded, RunFolder
from gpt.data.tokenizers import Tokenizer
from gpt.generation import generate
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.model import GPT
from gpt.system.errors import DataError, GenerationError

MOST_CHARACTERS = 100
LEAST_TOKENS = 2
"""A text with a prediction has one more than it."""


def example_of(loaded: Loaded) -> str:
    """Return a line or so of the last sample of a checkpoint's run, or else one that the model writes.

    It is empty where the model can write none.
    """
    if found := _excerpt(_last_sample(loaded.folder), loaded.model, loaded.tokenizer):
        return found
    try:
        return _written(loaded.model, loaded.tokenizer)
    except GenerationError:  # its weights are not finite
        return ""


def _written(model: GPT, tokenizer: Tokenizer) -> str:
    """Return a line or so that the model writes, always the same."""
    runtime = build_runtime(model, DecodeOptions(backend="eager"))  # what is short needs no kernels to be made ready
    settings = {"max_new_tokens": MOST_CHARACTERS, "temperature": 0.8, "seed": 1337}
    text = generate(model, tokenizer, "", runtime=runtime, **settings)
    return _excerpt(text, model, tokenizer) or text[: model.config.block_size]


def _last_sample(checkpoint: Path) -> str:
    """Return the last sample that a checkpoint's run has recorded; empty where there is none."""
    if checkpoint.parent.name != "checkpoints":
        return ""
    samples = RunFolder(checkpoint.parent.parent).samples.glob("step-*.txt")
    last = max(samples, key=lambda file: (len(file.name), file.name), default=None)
    try:
        return "" if last is None else last.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _excerpt(text: str, model: GPT, tokenizer: Tokenizer) -> str:
    """Return the part of a text with the most letters that fits the window; empty where none is of the vocabulary."""
    most = min(model.config.block_size, MOST_CHARACTERS)
    text = text.strip()
    starts = [0, *(match.end() for match in re.finditer(r"\n\s*", text))]
    while most >= LEAST_TOKENS:
        part = max((_cut(text[start:], most) for start in starts), key=lambda part: (_letters(part), -len(part)))
        try:
            tokens = len(tokenizer.encode(part))
        except DataError:
            return ""
        if tokens <= model.config.block_size:
            return part if tokens >= LEAST_TOKENS else ""
        most = most * 3 // 4
    return ""


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def _cut(text: str, most: int) -> str:
    """Return the beginning of a text, at most so many characters, up to the end of a line, or else of a word."""
    spaces = [match.start() for match in re.finditer(r"\s", text[: most + 1])]
    lines = [place for place in spaces if text[place] == "\n" and place > most // 2]
    return text[: max(lines or spaces, default=most)].rstrip()
