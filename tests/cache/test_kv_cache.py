import gc
import weakref

import pytest
import torch

from gpt.cache.kv_cache import KVCache, cache_bytes
from gpt.cache.paged_store import KV_DTYPES
from gpt.model import GPT
from gpt.system.errors import InputError
from tiny import tiny_config

CONFIG = tiny_config(n_kv_head=2)  # 2 layers, 4 query heads on 2 of keys and values, 8 wide, 16 positions


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_what_was_appended_is_read_back_rounded_also_after_a_truncation(kv_dtype: str) -> None:
    cache, x = KVCache(CONFIG, 3, kv_dtype), torch.randn(2, 3, 4, 16, 8)  # of each layer, keys and values

    def append(start: int, end: int) -> None:
        for layer in range(2):
            keys, values = cache.append(layer, *x[layer, :, :, start:end].split(2, dim=1))
            assert torch.equal(torch.cat((keys, values), dim=1), x[layer, :, :, :end].to(KV_DTYPES[kv_dtype]).float())
        assert cache.positions(end - start).tolist() == list(range(start, end))
        cache.advance(end - start)

    append(0, 5)
    append(5, 6)
    cache.truncate(3)
    x[:, :, :, 3:].neg_()
    append(3, 16)
    with pytest.raises(InputError, match="1 tokens after 16 do not fit into a cache of 16 positions"):
        cache.positions(1)
    with pytest.raises(AssertionError):
        cache.truncate(17)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("batch", "n_kv_head"), [(1, 4), (3, 2), (3, 1)])
def test_bytes_are_known_before_a_cache_is_made(kv_dtype: str, batch: int, n_kv_head: int) -> None:
    config, size = tiny_config(n_kv_head=n_kv_head), KV_DTYPES[kv_dtype].itemsize
    cache = KVCache(config, batch, kv_dtype)
    assert cache.nbytes == cache_bytes(config, batch, 16, kv_dtype) == 2 * batch * 16 * 2 * n_kv_head * 8 * size


def test_memory_stays_where_it_is_while_positions_are_appended() -> None:
    cache, x, places = KVCache(CONFIG), torch.ones(1, 2, 1, 8), set()
    for _ in range(16):
        keys, values = cache.append(0, x, x)
        places.add((keys.data_ptr(), values.data_ptr()))
        cache.advance(1)
    assert len(places) == 1


def test_memory_is_freed_with_the_last_reference_without_the_garbage_collector(tiny_model: GPT) -> None:
    gc.disable()
    try:
        cache = KVCache(tiny_model.config, batch=2)
        tiny_model(torch.zeros(2, 3, dtype=torch.long), cache=cache)
        freed = weakref.ref(cache)
        del cache
        assert freed() is None
    finally:
        gc.enable()
