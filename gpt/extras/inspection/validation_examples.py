"""Short texts of the validation split, which a reader may give a model with one click."""

import re
from collections.abc import Iterator
from itertools import islice

from gpt.checkpoint import Loaded
from gpt.checkpoint.corpus import training_dataset
from gpt.data.dataset import Dataset
from gpt.data.items import encode_marked, item_spans, questions_of
from gpt.data.pairs import with_signs
from gpt.system.errors import GPTError

NUM_EXAMPLES = 3
MIN_CHARACTERS = 24
"""Characters from which on a beginning is long enough: a sentence such as "Ay." is joined with the
next one.
"""
MAX_CHARACTERS = 100
"""About a line, as `example.MAX_CHARACTERS`."""
MAX_SCANNED_TOKENS = 20_000
"""Tokens in which the beginning of a paragraph is looked for: a corpus may have gigabytes."""
MAX_SCANNED_ITEMS = 100
"""Items among which one of a fitting length is looked for."""
EMPTY_LINE = re.compile(r"\n[ \t]*\n\s*")
LINE_END = re.compile(r"\n\s*")
SENTENCE_END = re.compile(r"[.!?…][\"'’”)\]]*(?=\s)|[。！？][」』”]*")  # noqa: RUF001
"""The end of a sentence. In most scripts white space follows, which a number such as 3.14 lacks."""


def validation_examples(loaded: Loaded) -> list[str]:
    """Return up to three beginnings of paragraphs of the validation split, in whole sentences.

    They are spread over the split, and always the same. Of a list they are whole items, and of
    questions and answers they are questions; signs stand for marks. There are none where the
    tokens of the corpus are gone.
    """
    try:
        dataset = training_dataset(loaded)
    except GPTError:
        return []
    window = loaded.model.config.block_size - 1  # one token is left for the mark before a text
    examples: list[str] = []
    for number in range(NUM_EXAMPLES):
        share = number / NUM_EXAMPLES
        for text in _candidates(dataset, share, loaded.model.config.block_size):
            fits_window = len(encode_marked(loaded.tokenizer, text)) <= window
            example = with_signs(text)
            if fits_window and example not in examples:
                examples.append(example)
                break
    return examples


def _candidates(dataset: Dataset, share: float, block_size: int) -> Iterator[str]:
    """Yield texts that may serve as an example, from a share of the validation split onward."""
    if dataset.items is None:
        begin = int(share * len(dataset.val))
        tokens = dataset.val[begin : begin + MAX_SCANNED_TOKENS]
        yield from beginnings_of_paragraphs(dataset.tokenizer.decode(tokens))
    elif dataset.has_answers:
        questions = questions_of(dataset.val, dataset.items, block_size)
        for question in islice(questions, MAX_SCANNED_ITEMS):
            # The first id is the mark before the question, the last one that before its answer.
            text = dataset.tokenizer.decode(question.ids[1:-1])
            if len(text) <= MAX_CHARACTERS:
                yield text
    else:
        spans = item_spans(dataset.val, dataset.items.end)
        first = int(share * len(spans))
        for begin, end in spans[first : first + MAX_SCANNED_ITEMS]:
            text = dataset.tokenizer.decode(dataset.val[begin : end - 1])  # without its mark
            if 0 < len(text) <= MAX_CHARACTERS:
                yield text


def beginnings_of_paragraphs(text: str) -> Iterator[str]:
    """Yield the first sentences of each paragraph of a text, or each line if it has no paragraphs.

    The beginning of the text is left out, because it may be within a paragraph. So is what is too
    short, too long, or no sentence, such as a heading.
    """
    paragraphs = EMPTY_LINE.split(text)
    if len(paragraphs) > 1:
        for paragraph in paragraphs[1:]:
            beginning = _first_sentences(paragraph)
            if beginning:
                yield beginning
        return
    for line in LINE_END.split(text)[1:]:
        if 0 < len(line) <= MAX_CHARACTERS:
            yield line


def _first_sentences(paragraph: str) -> str:
    """Return the first sentence of a paragraph, or several if it is short; empty if none fit."""
    # A line end is appended, since white space follows a sentence.
    for match in SENTENCE_END.finditer(f"{paragraph.rstrip()}\n"):
        if MIN_CHARACTERS <= match.end() <= MAX_CHARACTERS:
            return paragraph[: match.end()]
    return ""
