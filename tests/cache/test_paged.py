"""Block tables and their pool, beside a plain model: a list of tokens for each sequence, and what each block holds."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpt.cache.paged import BlockPool, BlockTable, OutOfBlocksError

SIZE, BLOCKS = 3, 9
texts = st.lists(st.integers(0, 1), max_size=2 * SIZE + 1)
"""Of two tokens, so that sequences often begin alike."""


class PagedCache(RuleBasedStateMachine):
    """Sequences that come, grow, shrink, multiply and go; `memory` holds for each position all tokens up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.sequences: list[tuple[BlockTable, list[int]]] = []
        self.memory: list[list[tuple[int, ...]]] = [[()] * SIZE for _ in range(BLOCKS)]

    def _store(self, table: BlockTable, expected: list[int], tokens: list[int]) -> bool:
        """Append tokens, or find that there is no room and that nothing has changed."""
        length = len(expected) + len(tokens)
        before, free = (list(table.blocks), list(table.tokens)), self.pool.free
        try:
            copies = table.reserve(length)
        except OutOfBlocksError:
            assert (table.blocks, table.tokens) == before
            assert self.pool.free == free < -(-length // SIZE)
            return False
        for target, source in copies:
            self.memory[target] = list(self.memory[source])
        expected += tokens
        for position in range(length - len(tokens), length):
            self.memory[table.blocks[position // SIZE]][position % SIZE] = tuple(expected[: position + 1])
        table.append(tokens)
        return True

    def _pick(self, data: st.DataObject) -> tuple[BlockTable, list[int]]:
        return data.draw(st.sampled_from(self.sequences))

    @rule(tokens=texts)
    def join(self, tokens: list[int]) -> None:
        table = BlockTable(self.pool)
        table.match(tokens)
        found = len(table.tokens)
        assert found % SIZE == 0
        expected = tokens[:found]
        if self._store(table, expected, tokens[found:]):
            self.sequences.append((table, expected))
        else:
            table.truncate(0)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=texts)
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        self._store(*self._pick(data), tokens)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), length=st.integers(0, 3 * SIZE))
    def shrink(self, data: st.DataObject, length: int) -> None:
        table, expected = self._pick(data)
        table.truncate(length)
        del expected[length:]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, expected = self._pick(data)
        free = self.pool.free
        self.sequences.append((table.fork(), list(expected)))
        assert self.pool.free == free

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), length=st.integers(0, 4 * SIZE))
    def reserve_in_vain(self, data: st.DataObject, length: int) -> None:
        """Room that is not used is no room that is lost."""
        table, expected = self._pick(data)
        if self._store(table, expected, []) and length > len(expected):
            try:
                copies = table.reserve(length)
            except OutOfBlocksError:
                return
            for target, source in copies:
                self.memory[target] = list(self.memory[source])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        table, _ = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        table.truncate(0)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for table, expected in self.sequences:
            assert table.tokens == expected
            for position in range(len(expected)):
                held = self.memory[table.blocks[position // SIZE]][position % SIZE]
                assert held == tuple(expected[: position + 1])

    @invariant()
    def blocks_in_use_are_those_of_the_sequences(self) -> None:
        held = {block for table, _ in self.sequences for block in table.blocks}
        assert self.pool.in_use == len(held)
        assert self.pool.free == BLOCKS - len(held)

    def teardown(self) -> None:
        for table, _ in self.sequences:
            table.truncate(0)
        assert self.pool.in_use == 0
        assert sorted(self.pool.allocate() for _ in range(BLOCKS)) == list(range(BLOCKS))


PagedCache.TestCase.settings = settings(stateful_step_count=30)
TestPagedCache = PagedCache.TestCase


def stored(pool: BlockPool, tokens: list[int]) -> BlockTable:
    """A sequence of these tokens, of which as much as possible is shared."""
    table = BlockTable(pool)
    table.match(tokens)
    table.reserve(len(tokens))
    table.append(tokens[len(table.tokens) :])
    return table


def test_a_common_prompt_is_held_once_and_its_last_block_once_for_each_that_writes() -> None:
    pool = BlockPool(40, 64)
    first = stored(pool, [1] * 200)
    others = [first.fork() for _ in range(31)]
    assert pool.in_use == 4
    copies = [pair for table in (first, *others) for pair in table.reserve(201)]
    assert pool.in_use == 3 + 32
    assert {source for _, source in copies} == {others[-1].blocks[3]}  # the last one to write keeps it
    assert len({target for target, _ in copies}) == 31


def test_what_was_released_first_is_overwritten_first_and_the_beginning_of_a_sequence_last() -> None:
    pool = BlockPool(4, 1)
    stored(pool, [1, 2]).truncate(0)
    stored(pool, [3, 4]).truncate(0)
    for left in ([1], [], [3]):
        pool.release(pool.allocate())  # of a block that is found by nothing any more
        assert pool.free == 4
        held = pool.allocate()
        for prefix in ([1, 2], [3, 4]):
            table = BlockTable(pool)
            table.match(prefix)
            if prefix[0] in left:
                assert table.tokens[: len(left)] == left
            table.truncate(0)
        pool.release(held)
