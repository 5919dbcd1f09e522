"""Held-out questions, answered by a model: how many answers are right to the last character."""

from itertools import islice

from gpt.checkpoint import Loaded
from gpt.data.dataset import Dataset
from gpt.data.items import ItemIds, questions_of
from gpt.data.tokens import Tokens
from gpt.generation.batch import BATCH_SIZE, Batch
from gpt.generation.runtime import build_runtime

MAX_PAIRS = 1_000
"""Questions that are answered: the share of right answers is right to 3% or better."""


def count_exact(loaded: Loaded, dataset: Dataset, tokens: Tokens) -> tuple[int, int]:
    """Answer the last question of each conversation of a split, by the most likely tokens.

    Return how many answers are those of the split, and how many there are: `MAX_PAIRS` at most.
    """
    assert dataset.items is not None
    block_size = loaded.config.model.block_size
    questions = list(islice(questions_of(tokens, dataset.items, block_size), MAX_PAIRS))
    num_exact = 0
    runtime = build_runtime(loaded.model)
    for first in range(0, len(questions), BATCH_SIZE):
        part = questions[first : first + BATCH_SIZE]
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
            is_exact = ids[:-1] == question.answer and _is_end(ids[-1], dataset.items)
            num_exact += is_exact
    return num_exact, len(questions)


def _is_end(token: int, ids: ItemIds) -> bool:
    """Return whether a token ends an answer: the last one of a conversation, or another."""
    return token in (ids.end, ids.turn)
