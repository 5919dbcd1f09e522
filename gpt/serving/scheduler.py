"""Decide which sequences run, and what each step computes of them (continuous batching: Yu et al. 2022, Orca)."""

from collections import deque

from gpt.cache.paged import BlockPool, OutOfBlocksError
from gpt.serving.sequence import Chunk, Sequence

TURN = 64
"""Tokens after which a sequence may lose its place to another; a block of them, of which the others are found again."""


class Scheduler:
    """The waiting sequences, in order of arrival, and the running ones.

    A sequence is admitted when there are a place and blocks for its tokens. Where all places are taken, one that has
    sampled `TURN` tokens in its place leaves it to a new sequence, or to one that has waited for as many steps, and is
    recomputed later. If a running one needs a block and none is free, the
    newest is preempted: it returns its blocks, moves to the head of the queue, and is recomputed later.

    Attributes:
        waiting: those not admitted yet, or preempted.
        running: those in the batch, from oldest to newest.
        reused_tokens: tokens whose blocks were found, so that they did not have to be computed.
        preemptions: number of preemptions so far.

    Args:
        pool: must have at least the blocks of one full window.
        max_sequences: most sequences in the running batch.
        prefill_chunk: most tokens of prompts, or of windows that have moved, computed in a step.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, prefill_chunk: int) -> None:
        self._pool, self._max_sequences, self._prefill_chunk = pool, max_sequences, prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._rows = list(reversed(range(max_sequences)))
        self._step = self.reused_tokens = self.preemptions = 0
        self._only_new = False

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to the queue."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence, and release its blocks."""
        if sequence in self.running:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Chunk]:
        """Return the chunks of the next step, with blocks reserved for them; none of a sequence that was preempted."""
        self._step += 1
        self._admit()
        counts = self._prefer_new(self._counts())
        chunks = []
        for sequence in list(self.running):  # oldest first, so that a preempted sequence has no chunk yet
            count = counts.get(sequence, 0)
            if count and self._reserve(sequence, count):
                window, stored = sequence.window(), sequence.stored
                chunks.append(Chunk(sequence, window[stored : stored + count], stored + count == len(window)))
        return chunks

    def store(self, chunk: Chunk) -> None:
        """Mark the tokens of a chunk as stored, once they are computed."""
        chunk.sequence.table.append(chunk.tokens)
        if chunk.samples:
            chunk.sequence.since = self._step

    def _admit(self) -> None:
        """Admit waiting sequences in order, while the batch has room and there are blocks for all their tokens."""
        for _ in range(len(self.waiting)):
            sequence = self.waiting[0]
            if not self._rows and not self._end_turn(sequence):
                return
            self._match(sequence)
            promised = sum(self._missing(other) for other in self.running)
            if self._missing(sequence) > self._pool.free - promised:
                sequence.table.truncate(0)
                return
            self.waiting.popleft()
            sequence.row, sequence.since, sequence.turn = self._rows.pop(), self._step, len(sequence.tokens)
            self.running.append(sequence)

    def _end_turn(self, waiting: Sequence) -> bool:
        """Queue the sequence that has had its place for most tokens, if that is a turn, and the other one is due."""
        longest = max(self.running, key=lambda sequence: len(sequence.tokens) - sequence.turn)
        if len(longest.tokens) - longest.turn < TURN or not (waiting.is_new or self._step - waiting.since >= TURN):
            return False
        self.preemptions += 1
        self._stop(longest)
        self.waiting.append(longest)
        return True

    def _counts(self) -> dict[Sequence, int]:
        """Return how many tokens of each running sequence to compute.

        Those that need one token get it. The others share `prefill_chunk`, longest wait first; a sequence whose
        next block is being computed for another one waits for that.
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

    def _prefer_new(self, counts: dict[Sequence, int]) -> dict[Sequence, int]:
        """Leave only sequences that get their first token by it, if there are any, in every other step.

        The end of a prompt takes less time than a step of the whole batch; the others never miss two steps in a row.
        """
        first = {item: count for item, count in counts.items() if item.is_new and count == item.pending}
        self._only_new = bool(first) and not self._only_new
        return first if self._only_new else counts

    def _match(self, sequence: Sequence) -> None:
        """Share the pool's blocks that match a sequence, whose last token is computed in any case."""
        before = sequence.stored
        if before % self._pool.block_size == 0:
            sequence.table.match(sequence.window()[:-1])
        self.reused_tokens += sequence.stored - before

    def _next_block(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the tokens up to the end of the block to compute next, if that can be shared."""
        size = self._pool.block_size
        end = (sequence.stored // size + 1) * size
        return tuple(sequence.window()[:end]) if end < len(sequence.tokens) - sequence.start else ()

    def _missing(self, sequence: Sequence) -> int:
        """Return how many more blocks the window of a sequence needs."""
        return -(-len(sequence.window()) // self._pool.block_size) - len(sequence.table.blocks)

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        """Reserve blocks for a sequence's next tokens, by preemption if necessary; return whether it still runs."""
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
        """Remove a sequence from the batch."""
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        sequence.table.truncate(0)
