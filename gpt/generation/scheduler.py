"""Decide which sequences run, and what each step computes of them (continuous batching: Yu et al. 2022, Orca)."""

import math
from collections import deque
from collections.abc import Sequence

from gpt.generation.paged import BlockPool, OutOfBlocksError
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken

TIME_SLICE_TOKENS = 64
"""Tokens after which a sequence may lose its place to another; a block of them, of which the others are found again."""


class Scheduler:
    """Schedules sequences that join and leave: the waiting ones, in order of arrival, and the running ones.

    A sequence is admitted when there are a place and blocks for its tokens. Where all places are taken, one that has
    sampled `TIME_SLICE_TOKENS` in its place leaves it to a new sequence, or to one that has waited for as many steps,
    and is recomputed later. If a running one needs a block and none is free, the newest is preempted: it returns its
    blocks, moves to the head of the queue, and is recomputed later.

    Sequences that begin with the same blocks share them; those with the same prompt share all of it.

    Attributes:
        running: those in the batch, from oldest to newest.
        reused_tokens: tokens whose blocks were found, so that they did not have to be computed.

    Args:
        pool: must have at least the blocks of one full window.
        prefill_chunk: most tokens of prompts, or of windows that have moved, computed in a step; None: all.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, prefill_chunk: int | None) -> None:
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.reused_tokens = self.preemptions = 0
        self._pool, self._prefill_chunk = pool, math.inf if prefill_chunk is None else prefill_chunk
        self._rows = list(reversed(range(max_sequences)))
        self._step, self._only_new = 0, False

    def add(self, sequence: SequenceState) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Remove a waiting or running sequence, and release its blocks."""
        if sequence in self.running:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self, ahead: int = 1) -> list[ScheduledWork]:
        """Return the chunks of the next step, with blocks reserved for them; none of a sequence that was preempted.

        Where nobody waits, the step may sample `ahead` tokens after each sequence.
        """
        self._step += 1
        self._admit()
        ahead = 1 if self.waiting else ahead
        counts = self._prefer_new(self._counts())
        chunks = []
        for sequence in list(self.running):  # oldest first, so that a preempted sequence has no chunk yet
            count, pending = counts.get(sequence, 0), sequence.num_uncached
            steps = 0 if count < pending else min(ahead, sequence.tokens_before_slide) if pending == 1 else 1
            if count and (chunk := self._reserve(sequence, count, steps)):
                chunks.append(chunk)
        return chunks

    def commit(self, chunk: ScheduledWork, sampled: Sequence[SampledToken]) -> None:
        """Mark the tokens of a chunk as stored, and those that were sampled after them but for the newest."""
        chunk.sequence.table.append([*chunk.tokens, *(token.id for token in sampled[:-1])])
        if sampled:
            chunk.sequence.waiting_since = self._step

    def _admit(self) -> None:
        """Admit waiting sequences in order, while the batch has room and there are blocks for all their tokens."""
        for _ in range(len(self.waiting)):
            sequence = self.waiting[0]
            if not self._rows and not self._rotate_out(sequence):
                return
            reused = self._match(sequence)
            promised = sum(self._missing(other) for other in self.running)
            if self._missing(sequence) > self._pool.free - promised:
                sequence.table.truncate(0)
                return
            self.waiting.popleft()
            sequence.row, sequence.waiting_since = self._rows.pop(), self._step
            sequence.admitted_length = len(sequence.tokens)
            self.running.append(sequence)
            self.reused_tokens += reused

    def _rotate_out(self, waiting: SequenceState) -> bool:
        """Queue the sequence that has had its place for most tokens, if its time slice is over and the other is due."""
        longest = max(self.running, key=lambda sequence: len(sequence.tokens) - sequence.admitted_length)
        is_due = waiting.is_new or self._step - waiting.waiting_since >= TIME_SLICE_TOKENS
        if len(longest.tokens) - longest.admitted_length < TIME_SLICE_TOKENS or not is_due:
            return False
        self.preemptions += 1
        self._stop(longest)
        self.waiting.append(longest)
        return True

    def _counts(self) -> dict[SequenceState, int]:
        """Return how many tokens of each running sequence to compute.

        Those that need one token get it. The others share `prefill_chunk`, longest wait first; a sequence whose
        next block is being computed for another request waits for that.
        """
        counts: dict[SequenceState, int] = {}
        left = self._prefill_chunk
        begun: set[bytes] = set()
        first_with: dict[tuple[int, ...], SequenceState] = {}
        for sequence in sorted(self.running, key=lambda sequence: sequence.waiting_since):
            pending = sequence.num_uncached
            if pending > 1:
                self.reused_tokens += self._match(sequence)
                pending = sequence.num_uncached
            if pending == 1:
                counts[sequence] = 1
                continue
            window = tuple(sequence.window())
            twin = first_with.setdefault(window, sequence)
            if twin is not sequence:
                # computed once, up to the last token: the next step shares what is stored
                counts[twin], counts[sequence] = min(counts[twin], twin.num_uncached - 1), 0
                continue
            block = self._next_block(sequence)
            counts[sequence] = 0 if block in begun else int(min(left, pending))
            left -= counts[sequence]
            if counts[sequence] and block:
                begun.add(block)
        return counts

    def _prefer_new(self, counts: dict[SequenceState, int]) -> dict[SequenceState, int]:
        """Leave only sequences that get their first token by it, if there are any, in every other step.

        The end of a prompt takes less time than a step of the whole batch; the others never miss two steps in a row.
        """
        first = {item: count for item, count in counts.items() if item.is_new and count == item.num_uncached}
        self._only_new = bool(first) and not self._only_new
        return first if self._only_new else counts

    def _match(self, sequence: SequenceState) -> int:
        """Share the blocks of a sequence with the same window, or those of the pool with the next of its tokens.

        Its last token is computed in any case. Returns the number of tokens found.
        """
        before, window = sequence.num_cached, sequence.window()[:-1]
        twin = next((other for other in self.running if other.table.tokens == window), None)
        if twin is not None:
            sequence.table.truncate(0)
            sequence.table = twin.table.fork()
        elif before % self._pool.block_size == 0:
            sequence.table.match(window)
        return sequence.num_cached - before

    def _next_block(self, sequence: SequenceState) -> bytes | None:
        """Return the key of the block to compute next, if that can be shared."""
        size, window = self._pool.block_size, sequence.window()
        begin = sequence.num_cached // size * size
        return sequence.table.next_key(window[begin : begin + size]) if begin + size < len(window) else None

    def _shares_last(self, sequence: SequenceState) -> bool:
        """Return whether the last block of a sequence is not full and another sequence has it too."""
        index, used = divmod(sequence.num_cached, self._pool.block_size)
        return bool(used) and self._pool.is_shared(sequence.table.blocks[index])

    def _missing(self, sequence: SequenceState) -> int:
        """Return how many more blocks the window of a sequence needs, one for a last block that it shares included."""
        blocks = -(-len(sequence.window()) // self._pool.block_size)
        return blocks - len(sequence.table.blocks) + self._shares_last(sequence)

    def _reserve(self, sequence: SequenceState, count: int, steps: int) -> ScheduledWork | None:
        """Return a chunk with blocks for it and for `steps` samples, by preemption if necessary; None: preempted."""
        while sequence in self.running:
            try:
                copies = sequence.table.reserve(sequence.num_cached + count + max(0, steps - 1))
            except OutOfBlocksError:
                if steps <= 1:
                    self._preempt(self.running[-1])
                steps = min(steps, 1)
            else:
                begin = sequence.start + sequence.num_cached
                return ScheduledWork(sequence, sequence.tokens[begin : begin + count], steps, copies)
        return None

    def _preempt(self, sequence: SequenceState) -> None:
        self.preemptions += 1
        self._stop(sequence)
        self.waiting.appendleft(sequence)

    def _stop(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        sequence.table.truncate(0)
