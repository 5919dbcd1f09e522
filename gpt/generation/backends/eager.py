"""Next-token logits from PyTorch, operator by operator: from the whole window each time, or with a cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache import KVCache
from gpt.generation.backends import TokenIds
from gpt.generation.backends.window import Window
from gpt.model import GPT


class UncachedBackend:
    """The reference: the whole window through the model for every token.

    Args:
        model: in eval mode.
        slide_chunk: see `Window`; None: a quarter of the window.
    """

    cache_bytes = 0

    def __init__(self, model: GPT, slide_chunk: int | None = None) -> None:
        self.model = model
        self.window = Window.build(model.config.block_size, slide_chunk)
        self.device = next(model.parameters()).device

    def next_logits(self, contexts: Sequence[TokenIds]) -> Tensor:
        windows = [self.window.of(context) for context in contexts]
        logits = self.model(pad(windows, self.device))  # a row's padding comes after it, where causality hides it
        last = pad([[len(window) - 1] for window in windows], self.device).squeeze(1)
        return logits[torch.arange(len(windows), device=self.device), last]

    def select(self, rows: Sequence[int]) -> None:
        """Nothing is kept."""


class CachedBackend:
    """Computes each position once: prefill what is new to the cache, then one token a row.

    Args:
        model: in eval mode.
        slide_chunk: see `Window`; None: a quarter of the window.
        kv_dtype: of the cache: fp32, bf16, fp16 or int8.
        prefill_chunk: most positions of a prompt computed at a time; None: all.
    """

    def __init__(
        self,
        model: GPT,
        slide_chunk: int | None = None,
        kv_dtype: str = "fp32",
        prefill_chunk: int | None = None,
    ) -> None:
        self.model = model
        self.window = Window.build(model.config.block_size, slide_chunk)
        self.kv_dtype, self.prefill_chunk = kv_dtype, prefill_chunk or self.window.size
        self.device = next(model.parameters()).device
        self._cache: KVCache | None = None
        self._starts: list[int] = []

    @property
    def cache_bytes(self) -> int:
        return self._cache.nbytes if self._cache is not None else 0

    def next_logits(self, contexts: Sequence[TokenIds]) -> Tensor:
        starts = [self.window.start(len(context)) for context in contexts]
        cache = self._cache = self._fill(contexts, starts)
        self._starts = starts
        newest = pad([context[-1:] for context in contexts], self.device)
        return self._step(cache, newest)[:, -1]

    def select(self, rows: Sequence[int]) -> None:
        if self._cache is not None:
            self._cache = self._cache.select(rows)
            self._starts = [self._starts[row] for row in rows]

    def _step(self, cache: KVCache, newest: Tensor) -> Tensor:
        """Logits (B, 1, V) after the newest tokens (B, 1), whose keys and values are stored."""
        logits: Tensor = self.model(newest, cache=cache)
        return logits

    def _fill(self, contexts: Sequence[TokenIds], starts: list[int]) -> KVCache:
        """A cache that holds each row's window but for its newest token."""
        olds = [tuple(context[start:-1]) for context, start in zip(contexts, starts, strict=True)]
        cache = self._cache
        if cache is None:
            return self._prefill(olds)
        wrong = [
            row for row, old in enumerate(olds) if cache.lengths[row] != len(old) or self._starts[row] != starts[row]
        ]
        if wrong:
            cache.assign(wrong, self._prefill([olds[row] for row in wrong]))
        return cache

    def _prefill(self, windows: Sequence[tuple[int, ...]]) -> KVCache:
        """A cache of these windows; equal ones are computed once."""
        distinct = list(dict.fromkeys(windows))
        cache = KVCache(self.model.config, len(distinct), None, self.kv_dtype, self.device)
        idx = pad(distinct, self.device)
        for piece in torch.split(idx, self.prefill_chunk, dim=1) if idx.size(1) else ():
            self.model(piece, cache=cache)
        cache.truncate([len(window) for window in distinct])
        if len(distinct) == len(windows):
            return cache
        place = {window: row for row, window in enumerate(distinct)}
        return cache.select([place[window] for window in windows])


def pad(rows: Sequence[TokenIds], device: torch.device) -> Tensor:
    """Rows of different lengths as one (B, T) tensor, filled up with id 0 at the end; waits for no device."""
    longest = max(len(row) for row in rows)
    padded = torch.tensor([[*row, *(0,) * (longest - len(row))] for row in rows], dtype=torch.long)
    return padded.to(device, non_blocking=True)
