"""Key/value caches."""

from gpt.cache.kv_cache import KV_DTYPES, KVCache, cache_bytes

__all__ = ["KV_DTYPES", "KVCache", "cache_bytes"]
