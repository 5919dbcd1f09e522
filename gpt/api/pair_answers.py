"""Held-out questions, answered by a model: how many answers are right to the last character."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt.checkpoint import Loaded
from gpt.data.dataset import Dataset
from gpt.data.items import item_spans
from gpt.data.tokens import Tokens
from gpt.generation.batch import Batch
from gpt.generation.runtime import build_runtime

PAIRS_AT_A_TIME = 64
"""Questions of a batch: more hardly raise the throughput, but need more memory."""
MAX_PAIRS = 1_000
"""Questions that are answered: the share of right answers is right to 3% or better."""


class Question(NamedTuple):
    """The end of a conversation.

    Attributes:
        ids: all of it up to the last answer, after the end of the one before.
        answer: the ids of the answer, without its end.
    """

    ids: list[int]
    answer: list[int]


def count_exact(loaded: Loaded, dataset: Dataset, tokens: Tokens) -> tuple[int, int]:
    """Answer the last question of each conversation of a split, by the most likely tokens.

    Return how many answers are those of the split, and how many there are: `MAX_PAIRS` at most.
    """
    questions = list(_questions(dataset, tokens, loaded.config.model.block_size))[:MAX_PAIRS]
    num_exact = 0
    runtime = build_runtime(loaded.model)
    for first in range(0, len(questions), PAIRS_AT_A_TIME):
        part = questions[first : first + PAIRS_AT_A_TIME]
        # one token more than the longest answer: an answer that goes on is not the right one
        longest = max(len(question.answer) for question in part) + 1
        params = loaded.config.sample.params(temperature=0.0, max_new_tokens=longest)
        params = params.limited_to(dataset.tokenizer.vocab_size)
        found: list[list[int]] = [[] for _ in part]
        prompts = [question.ids for question in part]
        for chunk in Batch(runtime, prompts, params, [0] * len(part), dataset.tokenizer):
            if chunk.token is not None:
                found[chunk.row].append(chunk.token.id)
        for question, ids in zip(part, found, strict=True):
            is_exact = ids[:-1] == question.answer and _is_end(ids[-1], dataset)
            num_exact += is_exact
    return num_exact, len(questions)


def _is_end(token: int, dataset: Dataset) -> bool:
    assert dataset.items is not None
    return token in (dataset.items.end, dataset.items.turn)


def _questions(dataset: Dataset, tokens: Tokens, block_size: int) -> Iterator[Question]:
    """Yield the last question of each conversation, cropped to a window that holds its answer."""
    ids = dataset.items
    assert ids is not None
    for begin, end in item_spans(tokens, ids.end):
        item = tokens[begin:end]
        split = int(np.flatnonzero(item == ids.answer)[-1]) + 1
        answer = item[split:-1].tolist()
        room = block_size - len(answer)
        question = [ids.end, *item[:split].tolist()]
        yield Question(question[-room:], answer)
