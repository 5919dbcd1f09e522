"""Key/value caches."""

from gpt.cache.kv_cache import KVCache, cache_bytes
from gpt.cache.stores import KV_DTYPES

__all__ = ["KV_DTYPES", "KVCache", "cache_bytes"]
