"""Sequences that join and leave, in PyTorch, with their keys and values in blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache.paged import BLOCK, BlockPool
from gpt.cache.paged_store import PagedStore, PagedView
from gpt.generation.runners import Runner, Sampled, sample_each
from gpt.generation.scheduler import Scheduler
from gpt.generation.sequence import Chunk
from gpt.model import GPT, eval_mode


class PagedRunner(Runner):
    """Computes all sequences that need one token as one batch, each longer chunk by itself.

    Logits depend on the rest of the batch by rounding only. The cache has `blocks` blocks of type `dtype`; see
    `Scheduler` for the other arguments.
    """

    def __init__(
        self, model: GPT, blocks: int, max_sequences: int, prefill_chunk: int | None, dtype: torch.dtype = torch.float32
    ) -> None:
        pool = BlockPool(blocks, BLOCK)
        super().__init__(pool, Scheduler(pool, max_sequences, prefill_chunk))
        self._model = model
        self._store = PagedStore(model.config, blocks, BLOCK, dtype, next(model.parameters()).device)

    @property
    def cache_bytes(self) -> int:
        return self.pool.in_use * self._store.block_bytes

    def run(self, chunks: Sequence[Chunk]) -> Sampled:
        self._store.copy_blocks([pair for chunk in chunks for pair in chunk.copies])
        short = [chunk for chunk in chunks if len(chunk.tokens) == 1]
        batches = [[chunk] for chunk in chunks if len(chunk.tokens) > 1]
        sequences, logits = [], []
        with eval_mode(self._model):
            for batch in [*batches, short] if short else batches:
                last = self._forward(batch)[:, -1]
                rows = [row for row, chunk in enumerate(batch) if chunk.steps]
                sequences += [batch[row].sequence for row in rows]
                logits.append(last if len(rows) == len(batch) else last[rows])
        return sample_each(sequences, torch.cat(logits)) if sequences else {}

    def _forward(self, batch: Sequence[Chunk]) -> Tensor:
        """Return the logits (B, T, V) after the tokens of chunks of equal length."""
        idx = torch.tensor([chunk.tokens for chunk in batch], device=self._store.device)
        tables = [chunk.sequence.table.blocks for chunk in batch]
        cache = PagedView(self._store, tables, [chunk.sequence.stored for chunk in batch], idx.size(1))
        logits: Tensor = self._model(idx, cache=cache)
        return logits
