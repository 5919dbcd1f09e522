"""A short text to look into a model with: a line or so that it writes."""

from typing import Any

from gpt.checkpoint import Loaded
from gpt.checkpoint.corpus import training_dataset
from gpt.data.items import encode_marked, questions_of
from gpt.data.pairs import TURN, with_signs
from gpt.generation.generator import generate
from gpt.generation.runtime import Runtime
from gpt.system.errors import GenerationError, GPTError

MAX_CHARACTERS = 100
"""About a line: a picture of its attention weights still fits a page."""
SEED = 1337
"""The seed of what is written, and of the first of several items."""
NUM_ITEMS = 8
"""Items of an example, which are cut off after `MAX_CHARACTERS`."""


def example_of(loaded: Loaded) -> str:
    """Return a line or so that a model writes, always the same.

    It fits the window, and ends with a whole word if it has several. It is empty if the weights are
    not finite.

    A model of a list writes a few items, and one of questions and answers answers a question of the
    validation split, since it has not learned to ask; without that split the example is empty.
    Signs stand for the marks.
    """
    sample = loaded.config.sample
    try:
        if TURN in sample.stop:
            text = _answered_question(loaded)
        elif sample.begin_id is not None:
            text = _items(loaded, sample.begin_id)
        else:
            text = _written(loaded, "", SEED)
    except GenerationError:
        return ""
    text = text.strip()
    window = loaded.model.config.block_size
    if sample.begin_id is not None:
        window -= 1  # the mark before the text
    max_characters = min(window, MAX_CHARACTERS)
    example = _cut(text, max_characters)
    # a character may be several tokens
    while len(encode_marked(loaded.tokenizer, example)) > window:
        max_characters = max_characters * 3 // 4
        example = _cut(text, max_characters)
    return with_signs(example)


def _written(loaded: Loaded, prompt: str, seed: int, **params: Any) -> str:
    """Return what a model writes after a prompt."""
    model = loaded.model
    values = {"max_new_tokens": MAX_CHARACTERS, "temperature": 0.8, "seed": seed, **params}
    return generate(model, loaded.tokenizer, prompt, runtime=Runtime(model), **values)


def _items(loaded: Loaded, mark: int) -> str:
    """Return a few items that a model of a list writes, with its mark between them."""
    end = loaded.config.sample.end_id
    items: list[str] = []
    for seed in range(SEED, SEED + NUM_ITEMS):
        items.append(_written(loaded, "", seed, begin_id=mark, end_id=end))
    return loaded.tokenizer.decode([mark]).join(item for item in items if item)


def _answered_question(loaded: Loaded) -> str:
    """Return a question of the validation split, the mark after it, and the model's answer.

    It is empty where the tokens of the corpus are gone.
    """
    try:
        dataset = training_dataset(loaded)
    except GPTError:
        return ""
    assert dataset.items is not None
    ids = next(questions_of(dataset.val, dataset.items, loaded.model.config.block_size)).ids
    question = loaded.tokenizer.decode(ids[1:])  # the first one is the mark before it
    sample = loaded.config.sample
    marks = {"begin_id": sample.begin_id, "end_id": sample.end_id, "stop": sample.stop}
    return question + _written(loaded, question, SEED, temperature=0.0, **marks)


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
