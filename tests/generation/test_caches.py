"""Caches: one of a batch, and block tables beside a plain model, a list of tokens and what each
block holds.
"""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpt.generation.kv_cache import KV_DTYPES, KVCache, cache_bytes
from gpt.generation.paged import BlockPool, BlockTable, OutOfBlocksError
from gpt.system.errors import InputError
from tiny import tiny_config

# 2 layers, 4 query heads on 2 of keys and values, 8 wide, 16 positions
CONFIG = tiny_config(n_kv_head=2)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_cache_returns_what_was_appended_rounded(kv_dtype: str) -> None:
    # The cache has keys and values for each layer.
    cache = KVCache(CONFIG, 3, kv_dtype)
    x = torch.randn(2, 3, 4, 16, 8)
    places = set()

    def append(start: int, end: int) -> None:
        for layer in range(2):
            keys, values = cache.append(layer, *x[layer, :, :, start:end].split(2, dim=1))
            assert torch.equal(
                torch.cat((keys, values), dim=1),
                x[layer, :, :, :end].to(KV_DTYPES[kv_dtype]).float(),
            )
        places.add((cache.keys.data_ptr(), cache.values.data_ptr()))
        assert cache.positions(end - start).tolist() == list(range(start, end))
        cache.advance(end - start)

    append(0, 5)
    append(5, 6)
    cache.truncate(3)
    x[:, :, :, 3:].neg_()
    append(3, 16)
    assert len(places) == 1, "memory was moved"
    with pytest.raises(
        InputError, match="1 tokens after 16 do not fit into a cache of 16 positions"
    ):
        cache.positions(1)
    with pytest.raises(AssertionError):
        cache.truncate(17)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("batch", "n_kv_head"), [(1, 4), (3, 2), (3, 1)])
def test_bytes_are_known_before_a_cache_is_made(kv_dtype: str, batch: int, n_kv_head: int) -> None:
    config = tiny_config(n_kv_head=n_kv_head)
    size = KV_DTYPES[kv_dtype].itemsize
    cache = KVCache(config, batch, kv_dtype)
    assert (
        cache.nbytes
        == cache_bytes(config, batch, 16, kv_dtype)
        == 2 * batch * 16 * 2 * n_kv_head * 8 * size
    )


SIZE = 3
BLOCKS = 9
texts = st.lists(st.integers(0, 1), max_size=2 * SIZE + 1)
"""Of two tokens, so that sequences often begin alike."""


class PagedCache(RuleBasedStateMachine):
    """Sequences that come, grow, shrink, multiply and go; `memory` holds for each position all
    tokens up to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.sequences: list[tuple[BlockTable, list[int]]] = []
        self.memory: list[list[tuple[int, ...]]] = [[()] * SIZE for _ in range(BLOCKS)]

    def _reserve(self, table: BlockTable, length: int) -> bool:
        """Reserve room, or find that there is none and that nothing has changed."""
        before = (list(table.blocks), list(table.tokens))
        free = self.pool.free
        try:
            copies = table.reserve(length)
        except OutOfBlocksError:
            assert (table.blocks, table.tokens) == before
            assert self.pool.free == free < -(-length // SIZE)
            return False
        for target, source in copies:
            self.memory[target] = list(self.memory[source])
        return True

    def _store(self, table: BlockTable, expected: list[int], tokens: list[int]) -> bool:
        length = len(expected) + len(tokens)
        if not self._reserve(table, length):
            return False
        expected += tokens
        for position in range(length - len(tokens), length):
            self.memory[table.blocks[position // SIZE]][position % SIZE] = tuple(
                expected[: position + 1]
            )
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
        if length > len(expected) and self._store(table, expected, []):
            self._reserve(table, length)

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


def test_pool_overwrites_the_block_released_first() -> None:
    pool = BlockPool(4, 1)
    stored(pool, [1, 2]).truncate(0)
    stored(pool, [3, 4]).truncate(0)
    for left in ([1], [], [3]):
        pool.release(pool.allocate())  # of a block that is found by nothing any more
        held = pool.allocate()
        for prefix in ([1, 2], [3, 4]):
            table = BlockTable(pool)
            table.match(prefix)
            if prefix[0] in left:
                assert table.tokens[: len(left)] == left
            table.truncate(0)
        pool.release(held)
