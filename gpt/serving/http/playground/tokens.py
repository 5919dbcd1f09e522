"""Tokens with what else was possible in their place, before and after the sampling parameters."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.generation import SampledToken
from gpt.generation.sampling import next_token_probabilities
from gpt.generation.text import TextStream
from gpt.inspection.views.tokens import labels_of, most_likely

ALTERNATIVES = 10
"""To each token."""
MAX_FED = 64
"""Tokens that are described at a time; until then, each holds the log-probabilities of the whole vocabulary."""


class DetailStream:
    """Describes tokens, and holds them back until the text they belong to is shown.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: the model's vocabulary size; tokens come with log-probabilities of all ids, or of the top ones.
        params: how they were sampled, without a repetition penalty.
        given: tokens at the beginning, which are not sampled.
        known: tokens at the beginning that are not to be described.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, params: SamplingParams, given: int, known: int) -> None:
        self._params, self._given, self._known = params, given, known
        self._text, self._count = TextStream(tokenizer), 0
        self._labels = labels_of(tokenizer, range(vocab_size))
        self._fed: list[SampledToken] = []
        self._described: list[dict[str, Any]] = []

    def feed(self, tokens: Iterable[SampledToken]) -> None:
        """Add tokens in the order of the text."""
        self._fed += tokens
        if len(self._fed) >= MAX_FED:
            self._describe()

    def take(self, length: int) -> list[dict[str, Any]]:
        """Return, once, all tokens so far; a token without a text is the beginning of a character."""
        self._describe()
        described, self._described = self._described, []
        return described

    def _describe(self) -> None:
        tokens, self._fed = self._fed, []
        for token, chance, own, sampled in zip(tokens, *self._alternatives(tokens), strict=True):
            described = {
                "id": token.id,
                "label": self._labels[token.id],
                "text": self._text.feed(token.id),
                "probability": None if token.logprob is None else _round(math.exp(token.logprob)),
                "chance": chance,
                "own": own,
                "sampled": sampled,
                "isGiven": self._count < self._given,
            }
            if self._count >= self._known:
                self._described.append(described)
            self._count += 1

    def _alternatives(self, tokens: list[SampledToken]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the probability of each in sampling, and the most likely ones, by the model and by sampling.

        These are lists of id, label and probability.
        """
        rows = [row for row, token in enumerate(tokens) if token.top]
        chances: list[Any] = [None for _ in tokens]
        own: list[Any] = [[] for _ in tokens]
        sampled: list[Any] = [[] for _ in tokens]
        if rows:
            logprobs = _matrix([tokens[row] for row in rows], len(self._labels))
            after = next_token_probabilities(logprobs, self._params)
            for lists, probabilities in ((own, logprobs.exp()), (sampled, after)):
                for row, best in zip(rows, most_likely(probabilities, ALTERNATIVES), strict=True):
                    lists[row] = [[index, self._labels[index], _round(p)] for index, p in best if p > 0]
            for row, probabilities in zip(rows, after, strict=True):
                chances[row] = _round(probabilities[tokens[row].id].item())
        return chances, own, sampled


def _matrix(tokens: list[SampledToken], vocab_size: int) -> Tensor:
    """Return the log-probabilities (N, V) that tokens come with, their own among them, else minus infinity."""
    logprobs = torch.full((len(tokens), vocab_size), -math.inf)
    for row, token in zip(logprobs, tokens, strict=True):
        known = {token.id: token.logprob, **dict(token.top)}
        row[list(known)] = torch.tensor(list(known.values()))
    return logprobs


def _round(value: float) -> float:
    """Return a number with the digits that a page may show, which are half the bytes."""
    return float(f"{value:.5g}")
