import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpt.cache import KV_DTYPES, KVCache, cache_bytes
from gpt.errors import InputError
from gpt.model import GPT
from tiny import tiny_config

CONFIG = tiny_config(n_kv_head=2)  # 2 layers, 4 query heads on 2 of keys and values, 8 wide, 16 positions
every_dtype = pytest.mark.parametrize("kv_dtype", KV_DTYPES)


def vectors(positions: int, batch: int = 1) -> Tensor:
    """(B, K, T, D)."""
    return torch.randn(batch, 2, positions, 8)


def append(cache: KVCache, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Append to every layer as a model does; what each layer then sees."""
    seen = [cache.layer(layer).append(k + layer, v - layer) for layer in range(2)]
    cache.advance(k.size(2))
    return seen


def ragged(lengths: Sequence[int], kv_dtype: str = "fp32") -> tuple[KVCache, Tensor, Tensor]:
    """A cache of rows of some lengths, made by padding, and the padded keys and values."""
    cache = KVCache(CONFIG, len(lengths), kv_dtype=kv_dtype)
    k, v = vectors(max(lengths), len(lengths)), vectors(max(lengths), len(lengths))
    append(cache, k, v)
    cache.truncate(lengths)
    return cache, k, v


def rows_of(cache: KVCache) -> list[tuple[Tensor, ...]]:
    """Keys and values of every row, of both layers, as far as the row goes."""
    longest = max(cache.lengths)
    nothing = vectors(0, len(cache.lengths))
    seen = [part for layer in range(2) for part in cache.layer(layer).append(nothing, nothing)]
    assert all(part.shape == (len(cache.lengths), 2, longest, 8) for part in seen)
    return [tuple(part[row, :, :length].clone() for part in seen) for row, length in enumerate(cache.lengths)]


def assert_same_rows(one: list[tuple[Tensor, ...]], other: list[tuple[Tensor, ...]]) -> None:
    assert len(one) == len(other)
    for mine, yours in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(lambda pieces: sum(pieces) <= 16))
def test_appending_any_number_of_positions_at_a_time_is_concatenation(pieces: list[int]) -> None:
    cache, k, v = KVCache(CONFIG, batch=2), vectors(16, batch=2), vectors(16, batch=2)
    end = 0
    for piece in pieces:
        begin, end = end, end + piece
        seen = append(cache, k[:, :, begin:end], v[:, :, begin:end])
        for layer, (keys, values) in enumerate(seen):
            assert torch.equal(keys, k[:, :, :end] + layer)
            assert torch.equal(values, v[:, :, :end] - layer)
    assert cache.lengths == [end, end]


@every_dtype
def test_appending_to_rows_of_different_lengths_continues_each_where_it_ends(kv_dtype: str) -> None:
    cache, k, v = ragged([5, 0, 3], kv_dtype)
    more_k, more_v = vectors(4, batch=3), vectors(4, batch=3)
    append(cache, more_k, more_v)
    assert cache.lengths == [9, 4, 7]
    for row, length in enumerate([5, 0, 3]):
        alone = KVCache(CONFIG, kv_dtype=kv_dtype)
        append(alone, k[row : row + 1, :, :length], v[row : row + 1, :, :length])
        append(alone, more_k[row : row + 1], more_v[row : row + 1])
        assert_same_rows(rows_of(alone), [rows_of(cache)[row]])


@every_dtype
@pytest.mark.parametrize("length", [0, 1, 4])
def test_what_follows_a_truncation_overwrites_what_was_there(kv_dtype: str, length: int) -> None:
    cache, straight = KVCache(CONFIG, kv_dtype=kv_dtype), KVCache(CONFIG, kv_dtype=kv_dtype)
    k, v, wrong = vectors(8), vectors(8), vectors(6)
    append(cache, torch.cat((k[:, :, :length], wrong), dim=2), torch.cat((v[:, :, :length], wrong), dim=2))
    cache.truncate(length)
    append(cache, k[:, :, length:], v[:, :, length:])
    append(straight, k, v)
    assert cache.lengths == [8]
    assert_same_rows(rows_of(cache), rows_of(straight))


@pytest.mark.parametrize("lengths", [[4, 3], 5, -1, [2]])
def test_a_truncation_cannot_lengthen_rows_or_leave_one_out(lengths: int | list[int]) -> None:
    cache, _, _ = ragged([4, 2])
    with pytest.raises(AssertionError):
        cache.truncate(lengths)


@every_dtype
@pytest.mark.parametrize("rows", [[0, 1, 2], [1], [2, 0], [0, 2, 0, 1, 1]])
def test_select_drops_reorders_and_multiplies_rows_with_their_lengths(kv_dtype: str, rows: list[int]) -> None:
    cache, _, _ = ragged([5, 2, 7], kv_dtype)
    before = rows_of(cache)
    chosen = cache.select(rows)
    assert chosen.lengths == [[5, 2, 7][row] for row in rows]
    assert chosen.capacity == cache.capacity
    assert_same_rows(rows_of(chosen), [before[row] for row in rows])


@every_dtype
def test_a_selected_cache_goes_on_by_itself(kv_dtype: str) -> None:
    cache, _, _ = ragged([5, 2], kv_dtype)
    before = rows_of(cache)
    chosen = cache.select([1, 1])
    assert chosen.nbytes == cache.nbytes
    append(chosen, vectors(3, batch=2), vectors(3, batch=2))
    assert (cache.lengths, chosen.lengths) == ([5, 2], [5, 5])
    assert_same_rows(rows_of(cache), before)


@every_dtype
def test_assign_replaces_rows_and_their_lengths_and_no_others(kv_dtype: str) -> None:
    cache, _, _ = ragged([5, 2, 7], kv_dtype)
    other, _, _ = ragged([1, 9], kv_dtype)
    expected = [rows_of(other)[1], rows_of(cache)[1], rows_of(other)[0]]
    cache.assign([2, 0], other)
    assert cache.lengths == [9, 2, 1]
    assert_same_rows(rows_of(cache), expected)


@every_dtype
@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
@pytest.mark.parametrize(("batch", "capacity"), [(1, 16), (3, 5)])
def test_bytes_are_known_before_a_cache_is_made_and_never_change(
    kv_dtype: str, n_kv_head: int, batch: int, capacity: int
) -> None:
    config = tiny_config(n_kv_head=n_kv_head)
    cache = KVCache(config, batch, capacity, kv_dtype)
    vector = {"fp32": 8 * 4, "bf16": 8 * 2, "fp16": 8 * 2, "int8": 8 + 2}[kv_dtype]
    assert cache.nbytes == cache_bytes(config, batch, capacity, kv_dtype)
    assert cache.nbytes == 2 * 2 * batch * n_kv_head * capacity * vector  # keys and values, layers
    x = torch.randn(batch, n_kv_head, capacity, 8)
    cache.layer(0).append(x, x)
    assert cache.nbytes == cache_bytes(config, batch, capacity, kv_dtype)


@every_dtype
def test_inputs_of_convolutions_are_counted_as_one_head_of_the_streams_width(kv_dtype: str) -> None:
    plain, convolved = (tiny_config(n_kv_head=2, mlp_conv=taps) for taps in (None, 3))
    vector = {"fp32": 32 * 4, "bf16": 32 * 2, "fp16": 32 * 2, "int8": 32 + 2}[kv_dtype]
    cache = KVCache(convolved, 3, 5, kv_dtype)
    assert cache.nbytes == cache_bytes(convolved, 3, 5, kv_dtype)
    assert cache.nbytes == cache_bytes(plain, 3, 5, kv_dtype) + 2 * 3 * 5 * vector  # layers, sequences, positions


@pytest.mark.parametrize("capacity", [0, -1, 17])
def test_a_capacity_the_model_cannot_use_is_refused(capacity: int) -> None:
    with pytest.raises(InputError, match=f"1 to block_size 16 positions, not {capacity}"):
        KVCache(CONFIG, capacity=capacity)


@pytest.mark.parametrize(("lengths", "new"), [([10], 7), ([3, 16], 1), ([0], 17)])
def test_positions_that_do_not_fit_are_an_error_with_the_numbers(lengths: list[int], new: int) -> None:
    cache, _, _ = ragged(lengths)
    with pytest.raises(InputError, match=f"{new} tokens after {max(lengths)} .* of 16 positions"):
        cache.positions(new)


def test_a_cache_can_be_filled_to_its_last_position_and_masks_only_rows_of_different_lengths() -> None:
    assert ragged([4, 4])[0].mask(2) is None
    assert ragged([4, 4])[0].positions(2).tolist() == [4, 5]
    cache, _, _ = ragged([10, 2])
    assert cache.positions(6).tolist() == [list(range(10, 16)), list(range(2, 8))]


def test_memory_stays_where_it_is_while_positions_are_appended() -> None:
    cache, places = KVCache(CONFIG), set()
    for _ in range(16):
        ((keys, values), _) = append(cache, vectors(1), vectors(1))
        places.add((keys.data_ptr(), values.data_ptr()))
    assert len(places) == 1


def test_reading_fp32_is_a_view_of_the_cache() -> None:
    cache = KVCache(CONFIG)
    ((early, _), _) = append(cache, vectors(2), vectors(2))
    cache.truncate(0)
    replaced = vectors(2)
    append(cache, replaced, replaced)
    assert torch.equal(early, replaced)


def test_rows_of_different_lengths_see_their_own_past_and_nothing_else() -> None:
    cache, _, _ = ragged([3, 1])
    mask = cache.mask(2)
    assert mask is not None
    assert mask.shape == (2, 1, 2, 5)
    expected = ["11110", "11111", "11000", "11100"]  # of each row, its first and its second query
    assert ["".join(str(int(key)) for key in query) for query in mask.flatten(0, 2)] == expected
    assert cache.positions(2).tolist() == [[3, 4], [1, 2]]


def test_positions_of_rows_of_different_lengths_are_made_once_until_the_lengths_change() -> None:
    cache = KVCache(tiny_config(), batch=2)
    cache.advance(3)
    cache.truncate([1, 3])
    asked = cache.positions(2)
    assert asked.tolist() == [[1, 2], [3, 4]]
    assert cache.positions(2) is asked
    assert cache.positions(1).tolist() == [[1], [3]]
    cache.lengths[0] = 2
    assert cache.positions(2).tolist() == [[2, 3], [3, 4]]


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
