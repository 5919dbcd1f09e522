"""Caches beside a plain model of them: lists of vectors, rounded as a store rounds them."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from gpt.cache import KV_DTYPES, KVCache, cache_bytes
from gpt.cache.stores import Store
from gpt.errors import InputError
from gpt.model import GPT
from tiny import tiny_config

CONFIG = tiny_config(n_kv_head=2)  # 2 layers, 4 query heads on 2 of keys and values, 8 wide, 16 positions


class Caches(RuleBasedStateMachine):
    """Caches that grow, shrink, and are selected from and assigned to each other; each row is (2 K, T, D) a layer."""

    @initialize(kv_dtype=st.sampled_from(list(KV_DTYPES)), seed=st.integers(0, 99))
    def begin(self, kv_dtype: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.kv_dtype = kv_dtype
        self.caches = []
        for lengths in ([5, 2, 4], [3, 1]):
            self.caches.append((KVCache(CONFIG, len(lengths), kv_dtype=kv_dtype), [nothing(4)] * len(lengths)))
            self.append(-1, 5)
            self._truncate(-1, lengths)

    @rule(which=st.integers(0, 9), new=st.integers(0, 6))
    def append(self, which: int, new: int) -> None:
        cache, rows = self._pick(which)
        if max(cache.lengths) + new > 16:
            with pytest.raises(InputError, match=rf"{new} tokens after {max(cache.lengths)} .* of 16 positions"):
                cache.positions(new)
            return
        x = torch.randn(len(rows), 4, new, 8)
        for layer in range(2):
            cache.layer(layer).append(x[:, :2] + layer, x[:, 2:] + layer)
        cache.advance(new)
        rows[:] = [torch.cat((row, more), dim=1) for row, more in zip(rows, x, strict=True)]

    @rule(which=st.integers(0, 9), data=st.data(), alike=st.booleans())
    def truncate(self, which: int, data: st.DataObject, alike: bool) -> None:
        cache, rows = self._pick(which)
        if alike:
            lengths = [data.draw(st.integers(0, min(cache.lengths)))] * len(rows)
        else:
            lengths = [data.draw(st.integers(0, length)) for length in cache.lengths]
        self._truncate(which, lengths, alike)

    def _truncate(self, which: int, lengths: list[int], alike: bool = False) -> None:
        cache, rows = self._pick(which)
        cache.truncate(lengths[0] if alike else lengths)
        rows[:] = [row[:, :length] for row, length in zip(rows, lengths, strict=True)]

    @rule(which=st.integers(0, 9), data=st.data())
    def select(self, which: int, data: st.DataObject) -> None:
        cache, rows = self._pick(which)
        chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4))
        self.caches = [*self.caches[-4:], (cache.select(chosen), [rows[row] for row in chosen])]

    @rule(which=st.integers(0, 9), other=st.integers(0, 9), data=st.data())
    def assign(self, which: int, other: int, data: st.DataObject) -> None:
        (cache, rows), (source, values) = self._pick(which), self._pick(other)
        if cache is source or len(values) > len(rows):
            return
        places = data.draw(st.permutations(range(len(rows))))[: len(values)]
        cache.assign(places, source)
        for place, value in zip(places, values, strict=True):
            rows[place] = value

    def _pick(self, which: int) -> tuple[KVCache, list[Tensor]]:
        return self.caches[which % len(self.caches)]

    @invariant()
    def every_row_reads_what_was_stored_in_it(self) -> None:
        for cache, rows in getattr(self, "caches", ()):
            assert cache.lengths == [row.size(1) for row in rows]
            empty = nothing(2).expand(len(rows), -1, -1, -1)
            for layer in range(2):
                keys, values = cache.layer(layer).append(empty, empty)
                for index, row in enumerate(rows):
                    found = torch.cat((keys[index], values[index]))[:, : row.size(1)]
                    assert torch.equal(found, rounded(row + layer, self.kv_dtype))


def nothing(heads: int) -> Tensor:
    return torch.empty(heads, 0, 8)


def rounded(x: Tensor, kv_dtype: str) -> Tensor:
    """Vectors (K, T, D) as a cache keeps them."""
    store = Store((1, 1, *x.shape), kv_dtype, torch.device("cpu"))
    store.write(0, 0, x.unsqueeze(0))
    return store.read(0, x.size(1), torch.float32)[0]


Caches.TestCase.settings = settings(max_examples=80, stateful_step_count=12, deadline=None)
TestCaches = Caches.TestCase


def ragged(lengths: Sequence[int]) -> KVCache:
    cache = KVCache(CONFIG, len(lengths))
    cache.advance(max(lengths))
    cache.truncate(lengths)
    return cache


@pytest.mark.parametrize("lengths", [[4, 3], 5, -1, [2]])
def test_a_truncation_cannot_lengthen_rows_or_leave_one_out(lengths: int | list[int]) -> None:
    with pytest.raises(AssertionError):
        ragged([4, 2]).truncate(lengths)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("batch", "capacity", "n_kv_head"), [(1, 16, 4), (3, 5, 2), (3, 5, 1)])
def test_bytes_are_known_before_a_cache_is_made_and_never_change(
    kv_dtype: str, batch: int, capacity: int, n_kv_head: int
) -> None:
    """Each vector of int8 has a scale."""
    config, size = tiny_config(n_kv_head=n_kv_head), KV_DTYPES[kv_dtype].itemsize
    scale = 2 * (kv_dtype == "int8")
    cache = KVCache(config, batch, capacity, kv_dtype)
    position = 2 * n_kv_head * (8 * size + scale)
    assert cache.nbytes == cache_bytes(config, batch, capacity, kv_dtype) == 2 * batch * capacity * position
    x = torch.randn(batch, n_kv_head, capacity, 8)
    cache.layer(0).append(x, x)
    assert cache.nbytes == 2 * batch * capacity * position


def test_memory_stays_where_it_is_while_positions_are_appended() -> None:
    cache, x, places = KVCache(CONFIG), torch.ones(1, 2, 1, 8), set()
    for _ in range(16):
        keys, values = cache.layer(0).append(x, x)
        places.add((keys.data_ptr(), values.data_ptr()))
        cache.advance(1)
    assert len(places) == 1


@pytest.mark.parametrize("capacity", [0, -1, 17])
def test_a_capacity_the_model_cannot_use_is_refused(capacity: int) -> None:
    with pytest.raises(InputError, match=f"1 to block_size 16 positions, not {capacity}"):
        KVCache(CONFIG, capacity=capacity)


def test_rows_of_different_lengths_see_their_own_past_and_nothing_else() -> None:
    assert ragged([4, 4]).mask(2) is None
    assert ragged([4, 4]).positions(2).tolist() == [4, 5]
    cache = ragged([3, 1])
    mask = cache.mask(2)
    assert mask is not None
    assert mask.shape == (2, 1, 2, 5)
    expected = ["11110", "11111", "11000", "11100"]  # of each row, its first and its second query
    assert ["".join(str(int(key)) for key in query) for query in mask.flatten(0, 2)] == expected


def test_positions_of_rows_of_different_lengths_are_made_once_until_the_lengths_change() -> None:
    cache = ragged([1, 3])
    asked = cache.positions(2)
    assert asked.tolist() == [[1, 2], [3, 4]]
    assert cache.positions(2) is asked
    assert cache.positions(1).tolist() == [[1], [3]]
    cache.lengths[0] = 2
    assert cache.positions(2).tolist() == [[2, 3], [3, 4]]
    assert ragged([10, 2]).positions(6).tolist() == [list(range(10, 16)), list(range(2, 8))]  # to the last one


def test_memory_is_freed_with_the_last_reference_without_the_garbage_collector(tiny_model: GPT) -> None:
    gc.disable()
    try:
        cache = KVCache(tiny_model.config, batch=2)
        tiny_model(torch.zeros(2, 3, dtype=torch.long), cache=cache)
        selected = cache.select([1])
        freed = [weakref.ref(kept) for kept in (cache, cache.keys, selected, selected.keys)]
        del cache, selected
        assert [reference() for reference in freed] == [None] * 4
    finally:
        gc.enable()
