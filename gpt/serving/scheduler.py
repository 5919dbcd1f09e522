"""Which sequences run, and what a step computes of each (continuous batching: Yu et al., 2022, Orca)."""

from collections import deque

from gpt.cache.paged import BlockPool, OutOfBlocksError
from gpt.serving.sequence import Chunk, Sequence


class Scheduler:
    """Sequences that wait, in the order of arrival, and those that run.

    A sequence is admitted when there are blocks for its tokens. Where a running one needs a block and none is free, the
    one that came last is preempted: it gives its blocks back, waits before all others, and is computed again.

    Attributes:
        waiting: not admitted yet, or preempted.
        running: from the oldest to the newest.
        reused_tokens: tokens whose blocks were found, so that they did not have to be computed.
        preemptions: so far.

    Args:
        pool: with at least the blocks of one full window.
        max_sequences: most sequences in the running batch.
        prefill_chunk: most tokens of prompts, or of windows that have moved, that a step computes.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, prefill_chunk: int) -> None:
        self._pool, self._max_sequences, self._prefill_chunk = pool, max_sequences, prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._rows = list(reversed(range(max_sequences)))
        self._step = self.reused_tokens = self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait behind all others."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Give back the blocks of a sequence that waits or runs, and forget it."""
        if sequence in self.running:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Chunk]:
        """Return what the next step computes, with blocks reserved for it; nothing where a sequence had to give way."""
        self._step += 1
        self._admit()
        counts = self._counts()
        chunks = []
        for sequence in list(self.running):  # from the oldest, so that a preempted one is not among the chunks
            count = counts[sequence]
            if count and self._reserve(sequence, count):
                window, stored = sequence.window(), sequence.stored
                chunks.append(Chunk(sequence, window[stored : stored + count], stored + count == len(window)))
        return chunks

    def store(self, chunk: Chunk) -> None:
        """Count the tokens of a chunk as stored, once they are computed."""
        chunk.sequence.table.append(chunk.tokens)
        if chunk.samples:
            chunk.sequence.since = self._step

    def _admit(self) -> None:
        """Let waiting sequences run, in their order, as long as there are rows, and blocks for all of their tokens."""
        while self.waiting and self._rows:
            sequence = self.waiting[0]
            self._match(sequence)
            promised = sum(self._missing(other) for other in self.running)
            if self._missing(sequence) > self._pool.free - promised:
                sequence.table.truncate(0)
                return
            self.waiting.popleft()
            sequence.row, sequence.since = self._rows.pop(), self._step
            self.running.append(sequence)

    def _counts(self) -> dict[Sequence, int]:
        """Return how many tokens of each running sequence to compute.

        Those that need one token get it. The others share `prefill_chunk`, longest wait first; one whose
        next block is being computed for another sequence waits for it.
        """
        counts: dict[Sequence, int] = {}
        left = self._prefill_chunk
        begun: set[tuple[int, ...]] = set()
        for sequence in sorted(self.running, key=lambda sequence: sequence.since):
            if sequence.pending == 1:
                counts[sequence] = 1
                continue
            self._match(sequence)
            block = self._next_block(sequence)
            counts[sequence] = 0 if block in begun else min(left, sequence.pending)
            left -= counts[sequence]
            if counts[sequence] and block:
                begun.add(block)
        return counts

    def _match(self, sequence: Sequence) -> None:
        """Share the blocks that the pool has of a sequence; its last token is computed in any case."""
        before = sequence.stored
        if before % self._pool.block_size == 0:
            sequence.table.match(sequence.window()[:-1])
        self.reused_tokens += sequence.stored - before

    def _next_block(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the tokens up to the end of the block that is computed next, if it can be shared."""
        size = self._pool.block_size
        end = (sequence.stored // size + 1) * size
        return tuple(sequence.window()[:end]) if end < len(sequence.tokens) - sequence.start else ()

    def _missing(self, sequence: Sequence) -> int:
        """Return how many more blocks the window of a sequence needs."""
        return -(-len(sequence.window()) // self._pool.block_size) - len(sequence.table.blocks)

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Get blocks for the next tokens of a sequence, by preemption if need be; return whether it still runs."""
        while sequence in self.running:
            try:
                copies = sequence.table.reserve(sequence.stored + count)
                assert not copies, "only full blocks are shared"
                return True
            except OutOfBlocksError:
                self._preempt(self.running[-1])
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._stop(sequence)
        self.waiting.appendleft(sequence)

    def _stop(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch."""
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        sequence.table.truncate(0)
