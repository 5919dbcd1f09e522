"""What a text is made of: running text, a list, texts of one shape; and whether it is sorted."""

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
"""Fewer lines are no list that is recognized: a few short lines may be any text."""
MAX_LINE_CHARS = 200
"""Lines that are longer are no items that are recognized."""
MAX_MEAN_WORDS = 4.0
"""Words of a line, on average, up to which lines are a list: verse has some seven, prose ten."""
CHARS_AS_WORDS = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
"""Kana and Chinese characters, one or two of which are a word."""
MIN_DISTINCT = 0.5
"""Share of the lines of a list that differ from all others before them."""
MAX_EMPTY_LINES = 0.01
"""Share of the lines of a list that may be empty."""
MAX_PARAGRAPH_CHARS = 2_000
SAME_SHAPE = 0.9
"""Share of the texts between empty lines that have the same number of lines, such as haiku.

The paragraphs of prose and the speeches of a play have all numbers.
"""
MIN_LINES = 1_000
"""Fewer lines say nothing about whether a text is sorted."""
MAX_CHANGE_OF_CHARS = 0.25
"""Largest difference between the characters of training and validation that is not reported.

Between parts of one book it is some 0.04, between chapters of documentation 0.1 to 0.2.
"""
MAX_CHANGE_OF_LINES = 0.7
"""The same for the first characters of lines: 0.1 in a play, 0.4 in this project's log, 0.99 in a
sorted list of names."""
MAX_TOKENS_COMPARED = 10_000_000
"""Tokens of each split that are compared, which takes some hundredths of a second."""


def recognize_items(text: str) -> str:
    """Return the value of `data.items` that fits a text: lines, paragraphs or none.

    It is cautious: a list that is taken for running text is trained on nearly as well, with a
    warning if it is sorted, and running text that is taken for a list is torn apart.
    """
    lines = text.strip("\n").split("\n")
    full_lines = lines_of(text)
    if len(full_lines) < MIN_ITEMS:
        return "none"
    if _is_list(full_lines) and len(lines) - len(full_lines) <= MAX_EMPTY_LINES * len(lines):
        return "lines"
    if _are_texts_of_one_shape(paragraphs_of(text)):
        return "paragraphs"
    return "none"


def _is_list(lines: Sequence[str]) -> bool:
    """Return whether lines are short, or sorted, and mostly different, as those of a list are."""
    if max(len(line) for line in lines) > MAX_LINE_CHARS:
        return False
    if len(set(lines)) < MIN_DISTINCT * len(lines):
        return False
    # Chinese and Japanese have no white space: each of their characters counts as a word.
    num_words = sum(len(line.split()) + len(CHARS_AS_WORDS.findall(line)) for line in lines)
    has_few_words = num_words <= MAX_MEAN_WORDS * len(lines)
    return has_few_words or list(lines) == sorted(lines)


def _are_texts_of_one_shape(texts: Sequence[str]) -> bool:
    """Return whether texts have several lines each, and nearly all of them equally many."""
    if len(texts) < MIN_ITEMS or max(len(text) for text in texts) > MAX_PARAGRAPH_CHARS:
        return False
    num_lines = Counter(text.count("\n") + 1 for text in texts)
    most_common, count = num_lines.most_common(1)[0]
    return most_common > 1 and count >= SAME_SHAPE * len(texts)


def is_grouped(dataset: Dataset) -> bool:
    """Return whether the validation split has other characters, or other beginnings of lines.

    A text that is sorted, or grouped by language or author, is validated on what it was not
    trained on. Only characters are compared, since other tokens are too many to count.
    """
    tokenizer = dataset.tokenizer
    if not isinstance(tokenizer, CharTokenizer) or "\n" not in tokenizer.stoi:
        return False
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
    """Return the tokens after line ends, but those that are line ends too, (N,)."""
    is_first = (tokens[:-1] == newline) & (tokens[1:] != newline)
    return tokens[1:][is_first]


def _difference(tokens: Tokens, others: Tokens, vocab_size: int) -> float:
    """Return half the sum of the differences between the shares of each token, from 0 to 1.

    It is called the total variation distance.
    """
    shares = np.bincount(tokens, minlength=vocab_size) / max(1, len(tokens))
    other_shares = np.bincount(others, minlength=vocab_size) / max(1, len(others))
    return float(np.abs(shares - other_shares).sum() / 2)
