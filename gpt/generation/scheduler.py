"""Decide which sequences run, and what each step computes of them.

Sequences join and leave between steps (continuous batching: Yu et al. 2022, Orca).
"""

import math
from collections import deque
from collections.abc import Sequence

from gpt.generation.paged import BlockPool, OutOfBlocksError
from gpt.generation.sequence import ScheduledWork, SequenceState
from gpt.generation.tokens import SampledToken

TIME_SLICE_TOKENS = 64
"""Tokens after which a sequence may lose its place to another one.

They fill a block. Full blocks are found again unless their memory was needed, so that little is
computed twice.
"""


class Scheduler:
    """Schedules sequences: the waiting ones, in order of arrival, and the running ones.

    A sequence is admitted when there are a place and blocks for its tokens. Where all places are
    taken, one that has sampled `TIME_SLICE_TOKENS` in its place leaves it to a new sequence, or to
    one that has waited for as many steps, and is recomputed later. If a running one needs a block
    and none is free, the newest is preempted: it returns its blocks, moves to the head of the
    queue, and is recomputed later.

    Sequences that begin with the same blocks share them; those with the same prompt share all of
    it.

    Attributes:
        running: the sequences in the batch, from oldest to newest.
        reused_tokens: tokens whose blocks were found, so that they did not have to be computed.

    Args:
        pool: must have at least the blocks of one full window.
        prefill_chunk: how many tokens of prompts, or of windows that have moved, a step computes at
            most; None means no limit.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, prefill_chunk: int | None) -> None:
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.reused_tokens = 0
        self.preemptions = 0
        self._pool = pool
        self._prefill_chunk = math.inf if prefill_chunk is None else prefill_chunk
        self._free_rows = list(reversed(range(max_sequences)))  # `pop` takes the lowest row first
        # The number of the present step: the time for which a sequence waits is counted in steps.
        self._step_number = 0
        self._gave_first_tokens = False  # whether the last step was for new sequences alone

    def add(self, sequence: SequenceState) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Remove a waiting or running sequence, and release its blocks."""
        if sequence in self.running:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self, max_samples: int = 1) -> list[ScheduledWork]:
        """Return what the next step computes, with blocks reserved for it.

        Args:
            max_samples: how many tokens the step may sample after each sequence while no sequence
                waits.
        """
        self._step_number += 1
        self._admit()
        if self.waiting:
            max_samples = 1  # the place of a sequence may be needed after any token
        # Sequences that get their first token in this step may be computed without the others.
        counts = self._only_first_tokens(self._count_tokens())
        work: list[ScheduledWork] = []
        # Sequences are planned from oldest to newest: if blocks run out, the newest ones are
        # preempted, which have no work yet. The list is copied, since preemption changes it.
        for sequence in list(self.running):
            count = counts.get(sequence, 0)
            if count == 0:
                continue  # the sequence waits for the next step
            samples = _samples_after(sequence, count, max_samples)
            item = self._reserve(sequence, count, samples)
            # There is no item if the sequence itself was preempted, since too few blocks are free.
            if item is not None:
                work.append(item)
        return work

    def commit(self, item: ScheduledWork, sampled: Sequence[SampledToken]) -> None:
        """Mark the tokens of a step as stored, and the sampled ones except the newest.

        The newest token has not been through the model yet.
        """
        sampled_ids = [token.id for token in sampled[:-1]]
        item.sequence.table.append([*item.tokens, *sampled_ids])
        if sampled:
            # The wait for the next token begins now.
            item.sequence.waiting_since = self._step_number

    def _admit(self) -> None:
        """Admit waiting sequences in order, while there are places and blocks for their tokens.

        A place is a row of the batch.
        """
        # The range is fixed beforehand, since `_rotate_out` appends to the queue: sequences that
        # lose their place now are not admitted again in this step.
        for _ in range(len(self.waiting)):
            sequence = self.waiting[0]
            if not self._free_rows:
                # A running sequence may leave its place, and then joins the end of the queue.
                was_place_freed = self._rotate_out(sequence)
                if not was_place_freed:
                    return
            # Blocks to share are looked up first, since they are not among the missing ones.
            reused = self._match(sequence)
            # Running sequences may not have blocks for all tokens of their windows yet. The blocks
            # that they still need are not given away, or they would soon be preempted.
            promised = sum(self._missing_blocks(other) for other in self.running)
            if self._missing_blocks(sequence) > self._pool.free - promised:
                sequence.table.truncate(0)  # release the blocks that were found
                return
            self.waiting.popleft()
            sequence.row = self._free_rows.pop()
            sequence.waiting_since = self._step_number
            sequence.admitted_length = len(sequence.tokens)
            self.running.append(sequence)
            self.reused_tokens += reused

    def _rotate_out(self, waiting: SequenceState) -> bool:
        """Free a place for a waiting sequence; return whether that was possible.

        The sequence that has sampled most tokens in its place leaves it, and joins the end of the
        queue, if its time slice is over and the waiting sequence is due. A new sequence is due at
        once, since its reader has seen nothing yet.
        """
        longest = max(self.running, key=_tokens_in_place)
        is_over = _tokens_in_place(longest) >= TIME_SLICE_TOKENS
        # A sequence that was in the batch before waits as many steps as a time slice has tokens.
        num_steps_waited = self._step_number - waiting.waiting_since
        is_due = waiting.is_new or num_steps_waited >= TIME_SLICE_TOKENS
        if not (is_over and is_due):
            return False
        self.preemptions += 1
        self._stop(longest)
        self.waiting.append(longest)
        return True

    def _count_tokens(self) -> dict[SequenceState, int]:
        """Return how many tokens of each running sequence to compute.

        A sequence of which only the newest token is not computed yet is always continued. The
        others, with prompts, share a budget, and the one that has waited longest comes first.
        Blocks that two sequences have in common are computed for one of them, while the other
        waits.
        """
        counts: dict[SequenceState, int] = {}
        plan = _PrefillPlan(self._prefill_chunk)
        for sequence in sorted(self.running, key=lambda each: each.waiting_since):
            if sequence.num_uncached > 1:
                # Other sequences may have computed some of its blocks in an earlier step.
                self.reused_tokens += self._match(sequence)
            if sequence.num_uncached == 1:
                counts[sequence] = 1
            else:
                plan.add(sequence, self._next_block_key(sequence))
        return counts | plan.counts

    def _only_first_tokens(self, counts: dict[SequenceState, int]) -> dict[SequenceState, int]:
        """Leave the other sequences out of a step that gives some sequences their first token.

        The step is shorter without them, so that a new request is answered sooner. They never miss
        two steps in a row: the step after such a step is for all sequences.
        """
        # A sequence gets its first token in the step that computes the last token of its prompt.
        first_tokens = {
            sequence: count
            for sequence, count in counts.items()
            if sequence.is_new and count == sequence.num_uncached
        }
        self._gave_first_tokens = bool(first_tokens) and not self._gave_first_tokens
        return first_tokens if self._gave_first_tokens else counts

    def _match(self, sequence: SequenceState) -> int:
        """Share blocks that hold the next tokens of a sequence; return the number of tokens found.

        The blocks are those of a running sequence with the same window, or full ones of the pool.
        The last token is computed in any case, since its logits are needed.
        """
        window = sequence.window()[:-1]
        num_before = sequence.num_cached
        twin = next((other for other in self.running if other.table.tokens == window), None)
        if twin is not None:
            # All blocks of the twin are shared, even the last one, which is not full yet. The
            # sequence that first writes into it gets a copy.
            sequence.table.truncate(0)
            sequence.table = twin.table.fork()
        elif num_before % self._pool.block_size == 0:
            # The key of a full block depends on all blocks before it, which must be full too.
            sequence.table.match(window)
        return sequence.num_cached - num_before

    def _next_block_key(self, sequence: SequenceState) -> bytes | None:
        """Return the key of the block to compute next; None if no other sequence could share it.

        Only full blocks are shared.
        """
        size = self._pool.block_size
        window = sequence.window()
        begin = sequence.num_cached // size * size  # the position at which the block begins
        # Every sequence computes the last token of its window itself, since it needs the logits
        # after it. So the block with this token is not shared, even if the token fills it.
        if begin + size >= len(window):
            return None
        return sequence.table.next_key(window[begin : begin + size])

    def _missing_blocks(self, sequence: SequenceState) -> int:
        """Return how many more blocks the window of a sequence needs."""
        blocks = -(-len(sequence.window()) // self._pool.block_size)  # rounded up
        missing = blocks - len(sequence.table.blocks)
        if self._shares_last_block(sequence):
            missing += 1  # a shared block is copied before it is written
        return missing

    def _shares_last_block(self, sequence: SequenceState) -> bool:
        """Return whether another sequence has the last block too, which is not full yet."""
        index, used = divmod(sequence.num_cached, self._pool.block_size)
        return used > 0 and self._pool.is_shared(sequence.table.blocks[index])

    def _reserve(self, sequence: SequenceState, count: int, samples: int) -> ScheduledWork | None:
        """Reserve blocks for the next tokens of a sequence and for samples after them.

        If there are too few free blocks, only one token is sampled, and if they are still too few,
        the newest sequences are preempted. Return None if the sequence itself was preempted.
        """
        # Each round makes room for the next one, until the blocks suffice. If the sequence is the
        # newest one left, it is itself preempted.
        while sequence in self.running:
            # Every sampled token but the last goes through the model in this step, and is stored.
            num_stored_samples = max(0, samples - 1)
            num_positions = sequence.num_cached + count + num_stored_samples
            try:
                # A block that other sequences share must not be written, so that the table takes a
                # new block in its place. The runner copies the content before it computes the step.
                block_copies = sequence.table.reserve(num_positions)
            except OutOfBlocksError:
                if samples > 1:
                    samples = 1
                else:
                    self._preempt(self.running[-1])  # the newest sequence
                continue
            # The window begins at `sequence.start`, and its first positions are stored already.
            begin = sequence.start + sequence.num_cached
            tokens = sequence.tokens[begin : begin + count]
            return ScheduledWork(sequence, tokens, samples, block_copies)
        return None

    def _preempt(self, sequence: SequenceState) -> None:
        self.preemptions += 1
        self._stop(sequence)
        self.waiting.appendleft(sequence)

    def _stop(self, sequence: SequenceState) -> None:
        """Take a sequence out of the batch; its full blocks stay in the prefix cache."""
        self.running.remove(sequence)
        self._free_rows.append(sequence.row)
        sequence.table.truncate(0)


class _PrefillPlan:
    """How many tokens of prompts, and of windows that have moved, a step computes.

    Attributes:
        counts: number of tokens of each sequence; 0 lets the sequence wait for the next step.

    Args:
        budget: the largest number of tokens of all sequences together.
    """

    def __init__(self, budget: float) -> None:
        self.counts: dict[SequenceState, int] = {}
        self._budget = budget
        # The first sequence of the plan with each window.
        self._first_with: dict[tuple[int, ...], SequenceState] = {}
        self._begun: set[bytes] = set()  # keys of the blocks that the step computes

    def add(self, sequence: SequenceState, block: bytes | None) -> None:
        """Plan as many tokens of a sequence as the budget allows, or let it wait for another one.

        Args:
            block: the key of the block that the sequence computes next; None if no other sequence
                can share that block.
        """
        first = self._first_with.setdefault(tuple(sequence.window()), sequence)
        if first is not sequence:
            # Both sequences have the same window. The first one computes it without its last token,
            # and in the next step the second one finds those blocks. Then each of the two computes
            # the last token, and samples after it by its own parameters. The one token that the
            # first sequence leaves out is not given back to the budget, which is only a limit.
            self.counts[first] = min(self.counts[first], first.num_uncached - 1)
            self.counts[sequence] = 0
        elif block is not None and block in self._begun:
            # Another sequence computes the same block in this step, and shares it in the next one.
            self.counts[sequence] = 0
        else:
            count = int(min(self._budget, sequence.num_uncached))  # the budget may be infinite
            self.counts[sequence] = count
            self._budget -= count
            if count > 0 and block is not None:
                self._begun.add(block)


def _samples_after(sequence: SequenceState, count: int, max_samples: int) -> int:
    """Return how many tokens a step that computes `count` tokens may sample after them."""
    if count < sequence.num_uncached:
        return 0  # logits after the last token of the window are needed to sample
    if count > 1:
        return 1  # a runner samples several tokens only where all sequences need one
    return min(max_samples, sequence.tokens_before_slide)


def _tokens_in_place(sequence: SequenceState) -> int:
    """Return how many tokens a sequence has sampled since it was admitted."""
    return len(sequence.tokens) - sequence.admitted_length
