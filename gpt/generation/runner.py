"""Runners: each computes the steps of an engine, and keeps the keys and values of its sequences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpt.generation.paged import BLOCK, BlockPool
from gpt.generation.paged_store import PagedStore
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken, SamplingKey, TokenIds, sample_tokens
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

    def __init__(self, block_size: int, pool: BlockPool) -> None:
        self.pool = pool
        self.block_size = block_size

    @property
    def max_samples_per_call(self) -> int:
        """Return the most tokens that the next step may sample after each sequence."""
        return 1

    @abstractmethod
    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], Tensor]:
        """Store the keys and values of the tokens of a step.

        Return the items after which tokens are sampled, and the logits (N, V) for these tokens:
        `num_sampled` neighboring rows for each item, in the order of the items.
        """

    def run(self, work: Sequence[ScheduledWork]) -> Sampled:
        """Store the keys and values of the tokens of a step, and sample the next ones.

        After an item with a draft, tokens are sampled up to the first that differs from the draft.
        """
        items, logits = self.logits(work)
        return sample_each(items, logits)


class TorchRunner(Runner):
    """Computes steps in PyTorch.

    Sequences that need one token form one batch, and each sequence that needs more is a batch by
    itself, so that nothing is padded. Other sequences in a batch change logits by rounding only.

    Args:
        blocks: number of blocks in the cache.
        dtype: of keys and values.
    """

    def __init__(self, model: GPT, blocks: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model.config.block_size, BlockPool(blocks, BLOCK))
        device = next(model.parameters()).device
        self._model = model
        self._store = PagedStore(model.config, blocks, BLOCK, dtype, device)

    def logits(self, work: Sequence[ScheduledWork]) -> tuple[list[ScheduledWork], Tensor]:
        # All blocks are copied before any is written: one sequence may write into the block from
        # which another one's is copied.
        for item in work:
            self._store.copy_blocks(item.copies)
        sampled_items: list[ScheduledWork] = []
        rows: list[Tensor] = []
        with eval_mode(self._model):
            for batch in _batches(work):
                logits = self._forward(batch)  # (B, T, V)
                # The items of a batch have the same number of tokens to sample: one after each of
                # their last input tokens, or none after a part of a prompt that is not its last.
                num_sampled = batch[0].num_sampled
                if num_sampled > 0:
                    sampled_items += batch
                first = logits.size(1) - num_sampled
                rows.append(logits[:, first:].flatten(0, 1))  # (B * num_sampled, V)
        return sampled_items, torch.cat(rows)

    def _forward(self, batch: Sequence[ScheduledWork]) -> Tensor:
        """Return the logits (B, T, V) after the tokens of items of equal length."""
        ids = torch.tensor([item.input_ids for item in batch])  # (B, T)
        idx = to_device(ids, self._store.device)
        tables = [item.sequence.table.blocks for item in batch]
        stored = [item.sequence.num_cached for item in batch]
        logits: Tensor = self._model(idx, cache=self._store.view(tables, stored, idx.size(1)))
        return logits


def _batches(work: Sequence[ScheduledWork]) -> list[list[ScheduledWork]]:
    """Divide the items of a step into batches of the same shape, so that nothing is padded.

    An item with several tokens of a prompt is a batch by itself, since prompts seldom have the same
    length.
    """
    batches: list[list[ScheduledWork]] = []
    by_shape: dict[tuple[int, int], list[ScheduledWork]] = {}
    for item in work:
        if len(item.tokens) > 1:
            batches.append([item])
        else:
            shape = (len(item.input_ids), item.num_sampled)
            by_shape.setdefault(shape, []).append(item)
    return [*batches, *by_shape.values()]


class _Place(NamedTuple):
    """A place at which a token is sampled.

    Attributes:
        row: index of the row of its logits.
        context: all tokens before it.
        uniform: the random number that decides the token.
    """

    sequence: SequenceState
    row: int
    context: TokenIds
    uniform: float


def sample_each(items: Sequence[ScheduledWork], logits: Tensor) -> Sampled:
    """Sample after the newest token of each item, and after each token of its draft.

    Places with the same sampling parameters are sampled together.

    Args:
        logits: as `Runner.logits` returns them with the items.
    """
    places_of: dict[SamplingKey, list[_Place]] = {}
    first_row = 0
    for item in items:
        places = _places(item, first_row)
        places_of.setdefault(item.sequence.sampled_by, []).extend(places)
        first_row += len(places)
    sampled: list[SampledToken | None] = [None] * first_row
    for places in places_of.values():
        selected = logits
        # If all places have the same parameters, indexing would only copy all rows.
        if len(places) < first_row:
            rows = torch.tensor([place.row for place in places])
            selected = logits[rows.to(logits.device)]
        contexts = [place.context for place in places]
        uniforms = [place.uniform for place in places]
        tokens = sample_tokens(selected, places[0].sequence.params, contexts, uniforms)
        for place, token in zip(places, tokens, strict=True):
            sampled[place.row] = token
    accepted: Sampled = {}
    first_row = 0
    for item in items:
        end = first_row + item.num_sampled
        accepted[item.sequence] = accept(sampled[first_row:end], item.draft)
        first_row = end
    return accepted


def _places(item: ScheduledWork, first_row: int) -> list[_Place]:
    """Return the places of an item: after its newest token, and after each token of its draft."""
    uniforms = item.sequence.random.peek(item.num_sampled)
    places = []
    for index, uniform in enumerate(uniforms):
        context = item.sequence.tokens
        if index > 0:
            context = [*context, *item.draft[:index]]
        places.append(_Place(item.sequence, first_row + index, context, uniform))
    return places


def accept(sampled: Sequence[SampledToken | None], draft: Sequence[int]) -> Sequence[SampledToken]:
    """Return the sampled tokens that count: up to the first that differs from the draft.

    That token counts too: the model has sampled it after tokens that are all right. The tokens
    after it follow a wrong guess.

    Args:
        sampled: one token more than the draft has; None where the logits are not finite.
    """
    accepted: list[SampledToken] = []
    for index, token in enumerate(sampled):
        if token is None:
            break
        accepted.append(token)
        if index < len(draft) and token.id != draft[index]:
            break
    # If a good token comes before logits that are not finite, the next step fails on them.
    return accepted or NOT_FINITE
