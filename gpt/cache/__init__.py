"""Key/value caches: one batch of equal lengths (`kv_cache`), and blocks that sequences share (`paged`)."""
