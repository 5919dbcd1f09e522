"""What the core does without: pages, exports, servers, views; only `api` and `cli` import it."""
