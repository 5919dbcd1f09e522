"""Runners: each computes the steps of an engine, and keeps the keys and values of its sequences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache.paged import BlockPool
from gpt.generation.scheduler import Schedule
from gpt.generation.sequence import Chunk, SequenceState
from gpt.generation.speculative import Speculation
from gpt.generation.tokens import SampledToken, SamplingKey, sample_tokens

Sampled = dict[SequenceState, list[SampledToken]]
"""The tokens sampled after each sequence, one at least; none where its logits are not finite."""


class Runner(ABC):
    """Computes steps.

    Attributes:
        speculation: what it has learned of drafts; None without.

    Args:
        pool: the blocks of keys and values; none where a runner keeps them otherwise.
        scheduler: decides what a step computes.
    """

    speculation: Speculation | None = None

    def __init__(self, pool: BlockPool, scheduler: Schedule) -> None:
        self.pool, self.scheduler = pool, scheduler

    @property
    def ahead(self) -> int:
        """Return the most tokens that the next step may sample after each sequence."""
        return 1

    @property
    @abstractmethod
    def cache_bytes(self) -> int:
        """Return the bytes of keys and values allocated now."""

    @abstractmethod
    def run(self, chunks: Sequence[Chunk]) -> Sampled:
        """Store the keys and values of each chunk's tokens, and sample at most `steps` tokens after it."""


def sample_each(sequences: Sequence[SequenceState], logits: Tensor) -> Sampled:
    """Sample the next token of each sequence from logits (B, V), together where their parameters are the same."""
    rows_of: dict[SamplingKey, list[int]] = {}
    for row, sequence in enumerate(sequences):
        rows_of.setdefault(sequence.sampled_by, []).append(row)
    sampled: Sampled = {}
    for rows in rows_of.values():
        chosen = [sequences[row] for row in rows]
        part = logits if len(rows) == len(sequences) else logits[torch.tensor(rows, device=logits.device)]
        uniforms = [sequence.random.peek(1)[0] for sequence in chosen]
        tokens = sample_tokens(part, chosen[0].params, [sequence.tokens for sequence in chosen], uniforms)
        sampled |= {sequence: [] if token is None else [token] for sequence, token in zip(chosen, tokens, strict=True)}
    return sampled
