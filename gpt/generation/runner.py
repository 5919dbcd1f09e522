"""Runners: each computes the steps of an engine, and keeps the keys and values of its sequences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.generation.paged import BLOCK, BlockPool
from gpt.generation.paged_store import PagedStore
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken, SamplingKey, sample_tokens
from gpt.model import GPT, eval_mode
from gpt.system.device import to_device

Sampled = dict[SequenceState, Sequence[SampledToken]]
"""The tokens sampled after each sequence, at least one, or `NOT_FINITE`."""
NOT_FINITE: Sequence[SampledToken] = ()
"""Stands for the tokens of a sequence whose logits are not finite."""


class Runner(ABC):
    """Computes steps, with keys and values in the blocks of `pool`.

    Attributes:
        block_size: the model's window.
    """

    def __init__(self, block_size: int, blocks: int) -> None:
        self.pool = BlockPool(blocks, BLOCK)
        self.block_size = block_size

    @property
    def max_samples_per_call(self) -> int:
        """Return the most tokens that the next step may sample after each sequence."""
        return 1

    @abstractmethod
    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[SequenceState], Tensor]:
        """Store the keys and values of the tokens of a step.

        Return the sequences to be sampled, and the logits (B, V) after them.
        """

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Store the keys and values of the tokens of a step, and sample the next ones."""
        sequences, logits = self.logits(work)
        return sample_each(sequences, logits)


class TorchRunner(Runner):
    """Computes steps in PyTorch.

    Sequences that need one token form one batch, and each sequence that needs more is a batch by
    itself, so that nothing is padded. The rest of the batch changes logits by rounding only.

    Args:
        blocks: number of blocks in the cache.
        dtype: of keys and values.
    """

    def __init__(self, model: GPT, blocks: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model.config.block_size, blocks)
        device = next(model.parameters()).device
        self._model = model
        self._store = PagedStore(model.config, blocks, BLOCK, dtype, device)

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[SequenceState], Tensor]:
        for item in work:
            self._store.copy_blocks(item.copies)
        # A batch is a tensor without padding: its sequences have the same number of tokens.
        batches = [[item] for item in work if len(item.tokens) > 1]
        single = [item for item in work if len(item.tokens) == 1]
        if single:
            batches.append(single)
        sequences: list[SequenceState] = []
        logits: list[Tensor] = []
        with eval_mode(self._model):
            for batch in batches:
                last = self._forward(batch)[:, -1]  # (B, V)
                # Nothing is sampled from a part of a prompt, of which more has to be computed.
                rows = [row for row, item in enumerate(batch) if item.max_samples]
                if len(rows) < len(batch):
                    last = last[rows]
                sequences += [batch[row].sequence for row in rows]
                logits.append(last)
        return sequences, torch.cat(logits)

    def _forward(self, batch: Sequence[ScheduledWork]) -> Tensor:
        """Return the logits (B, T, V) after the tokens of items of equal length."""
        idx = to_device(torch.tensor([item.tokens for item in batch]), self._store.device)  # (B, T)
        tables = [item.sequence.table.blocks for item in batch]
        stored = [item.sequence.num_cached for item in batch]
        logits: Tensor = self._model(idx, cache=self._store.view(tables, stored, idx.size(1)))
        return logits


def sample_each(sequences: Sequence[SequenceState], logits: Tensor) -> Sampled:
    """Sample the next token of each sequence from logits (B, V).

    Sequences with the same sampling parameters are sampled together.
    """
    rows_of: dict[SamplingKey, list[int]] = {}
    for row, sequence in enumerate(sequences):
        rows_of.setdefault(sequence.sampled_by, []).append(row)
    sampled: Sampled = {}
    for rows in rows_of.values():
        alike = [sequences[row] for row in rows]
        selected = logits
        if len(rows) < len(sequences):  # indexing would copy all rows
            selected = logits[torch.tensor(rows, device=logits.device)]
        uniforms = [sequence.random.peek(1)[0] for sequence in alike]
        contexts = [sequence.tokens for sequence in alike]
        tokens = sample_tokens(selected, alike[0].params, contexts, uniforms)
        for sequence, token in zip(alike, tokens, strict=True):
            sampled[sequence] = NOT_FINITE if token is None else [token]
    return sampled
