"""Recognize whether a text is running text, a list or texts of one shape, and if it is sorted."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.dataset import Dataset
from gpt.data.items import lines_of, paragraphs_of
from gpt.data.tokenizers import CharTokenizer
from gpt.data.tokens import Tokens

MIN_ITEMS = 100
"""Fewest lines that are recognized as a list: a few short lines may be any text."""
MAX_LINE_CHARS = 200
"""Longest line, in characters, that is recognized as an item of a list."""
MAX_MEAN_WORDS = 4.0
"""Largest mean number of words in the lines of a list: verse has about seven, prose ten."""
CHARS_AS_WORDS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
"""Kana and Chinese characters, of which each is counted as a word."""
MIN_DISTINCT = 0.5
"""Smallest share of distinct lines in a list."""
MAX_EMPTY_LINES = 0.01
"""Largest share of empty lines in a list."""
MAX_PARAGRAPH_CHARS = 2_000
"""Longest text between empty lines, in characters, that is recognized as an item."""
SAME_SHAPE = 0.9
"""Smallest share of texts of one shape, such as haiku, that have the same number of lines.

The paragraphs of prose and the speeches of a play have very different numbers of lines.
"""
MIN_LINES = 1_000
"""Fewest training lines from which it is judged whether a text is sorted."""
MAX_CHANGE_OF_CHARS = 0.25
"""Largest `_difference` between the characters of training and validation without a report.

Between parts of one book it is about 0.04, between chapters of documentation 0.1 to 0.2.
"""
MAX_CHANGE_OF_LINES = 0.7
"""Largest `_difference` between the first characters of lines without a report.

It is 0.1 in a play, 0.4 in this project's log and 0.99 in a sorted list of names.
"""
MAX_TOKENS_COMPARED = 10_000_000
"""Most tokens of each split that are compared, which takes some hundredths of a second."""


def recognize_items(text: str) -> str:
    """Return the value of `data.items` that fits a text: lines, paragraphs or none.

    In doubt a text is running text: a list trains nearly as well as running text, with a warning if
    it is sorted, but running text that is read as a list loses its context.
    """
    lines = text.strip("\n").split("\n")
    full_lines = lines_of(text)  # those that are not blank
    if len(full_lines) < MIN_ITEMS:
        return "none"
    num_empty = len(lines) - len(full_lines)
    if num_empty <= MAX_EMPTY_LINES * len(lines) and _is_list(full_lines):
        return "lines"
    if _are_texts_of_one_shape(paragraphs_of(text)):
        return "paragraphs"
    return "none"


def _is_list(lines: Sequence[str]) -> bool:
    """Return whether lines are short and mostly distinct, and have few words or are sorted."""
    if max(len(line) for line in lines) > MAX_LINE_CHARS:
        return False
    if len(set(lines)) < MIN_DISTINCT * len(lines):
        return False
    # Chinese and Japanese have no spaces between words: each character counts as a word.
    num_words = sum(len(line.split()) + len(CHARS_AS_WORDS.findall(line)) for line in lines)
    has_few_words = num_words <= MAX_MEAN_WORDS * len(lines)
    return has_few_words or list(lines) == sorted(lines)


def _are_texts_of_one_shape(texts: Sequence[str]) -> bool:
    """Return whether nearly all texts have the same number of lines, which is more than one."""
    if len(texts) < MIN_ITEMS:
        return False
    if max(len(text) for text in texts) > MAX_PARAGRAPH_CHARS:
        return False
    numbers_of_lines = Counter(text.count("\n") + 1 for text in texts)
    num_lines, num_texts = numbers_of_lines.most_common(1)[0]
    return num_lines > 1 and num_texts >= SAME_SHAPE * len(texts)


def is_grouped(dataset: Dataset) -> bool:
    """Return whether characters or beginnings of lines differ much between training and validation.

    They do where a text is sorted, or grouped by language or author: the model is then validated on
    another kind of text than it learns. Only vocabularies of characters are small enough to count.
    """
    tokenizer = dataset.tokenizer
    if not isinstance(tokenizer, CharTokenizer) or "\n" not in tokenizer.stoi:
        return False
    # The validation split follows the training split, so that neighboring parts are compared.
    train = dataset.train[-MAX_TOKENS_COMPARED:]
    val = dataset.val[:MAX_TOKENS_COMPARED]
    newline = tokenizer.stoi["\n"]
    train_firsts = _firsts_of_lines(train, newline)
    val_firsts = _firsts_of_lines(val, newline)
    if len(train_firsts) < MIN_LINES:
        return False
    vocab_size = tokenizer.vocab_size
    if _difference(train, val, vocab_size) > MAX_CHANGE_OF_CHARS:
        return True
    return _difference(train_firsts, val_firsts, vocab_size) > MAX_CHANGE_OF_LINES


def _firsts_of_lines(tokens: Tokens, newline: int) -> NDArray[np.integer[Any]]:
    """Return the first token of each line that is not empty, (N,)."""
    is_first = (tokens[:-1] == newline) & (tokens[1:] != newline)
    return tokens[1:][is_first]


def _difference(tokens: Tokens, others: Tokens, vocab_size: int) -> float:
    """Return the total variation distance between the token frequencies of two texts.

    It is half the sum of the absolute differences of the frequencies, from 0 to 1.
    """
    shares = np.bincount(tokens, minlength=vocab_size) / max(1, len(tokens))
    other_shares = np.bincount(others, minlength=vocab_size) / max(1, len(others))
    return float(np.abs(shares - other_shares).sum() / 2)
