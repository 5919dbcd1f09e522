"""Runners: each computes the steps of an engine, and keeps the keys and values of its sequences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.generation.paged import BLOCK, BlockPool
from gpt.generation.paged_store import PagedStore, PagedView
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken, SamplingKey, sample_tokens
from gpt.model import GPT, eval_mode
from gpt.system.device import to_device

Sampled = dict[SequenceState, list[SampledToken]]
"""The tokens sampled after each sequence, one at least; none where its logits are not finite."""


class Runner(ABC):
    """Computes steps, with keys and values in the blocks of `pool`; `block_size` is the model's window."""

    def __init__(self, block_size: int, blocks: int) -> None:
        self.pool, self.block_size = BlockPool(blocks, BLOCK), block_size

    @property
    def max_samples_per_call(self) -> int:
        """Return the most tokens that the next step may sample after each sequence."""
        return 1

    @abstractmethod
    def logits(self, chunks: Sequence[ScheduledWork]) -> tuple[list[SequenceState], Tensor]:
        """Store the keys and values of each chunk's tokens; return the sequences to be sampled, and logits (B, V)."""

    def run(self, chunks: Sequence[ScheduledWork]) -> Sampled:
        """Store the keys and values of each chunk's tokens, and sample the next token after it."""
        return sample_each(*self.logits(chunks))


class TorchRunner(Runner):
    """Computes all sequences that need one token as one batch, each longer chunk by itself, in PyTorch.

    Logits depend on the rest of the batch by rounding only. The cache has `blocks` blocks of type `dtype`.
    """

    def __init__(self, model: GPT, blocks: int, dtype: torch.dtype = torch.float32) -> None:
        self._model = model
        self._store = PagedStore(model.config, blocks, BLOCK, dtype, next(model.parameters()).device)
        super().__init__(model.config.block_size, blocks)

    def logits(self, chunks: Sequence[ScheduledWork]) -> tuple[list[SequenceState], Tensor]:
        self._store.copy_blocks([pair for chunk in chunks for pair in chunk.copies])
        short = [chunk for chunk in chunks if len(chunk.tokens) == 1]
        batches = [[chunk] for chunk in chunks if len(chunk.tokens) > 1]
        sequences, logits = list[SequenceState](), list[Tensor]()
        with eval_mode(self._model):
            for batch in [*batches, short] if short else batches:
                last = self._forward(batch)[:, -1]
                rows = [row for row, chunk in enumerate(batch) if chunk.max_samples]
                sequences += [batch[row].sequence for row in rows]
                logits.append(last if len(rows) == len(batch) else last[rows])
        return sequences, torch.cat(logits)

    def _forward(self, batch: Sequence[ScheduledWork]) -> Tensor:
        """Return the logits (B, T, V) after the tokens of chunks of equal length."""
        idx = to_device(torch.tensor([chunk.tokens for chunk in batch]), self._store.device)
        tables = [chunk.sequence.table.blocks for chunk in batch]
        cache = PagedView(self._store, tables, [chunk.sequence.num_cached for chunk in batch], idx.size(1))
        logits: Tensor = self._model(idx, cache=cache)
        return logits


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
