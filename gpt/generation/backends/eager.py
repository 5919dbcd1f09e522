"""Next-token logits from PyTorch, operator by operator: from the whole window each time, or with a cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.cache import KVCache
from gpt.generation.backends import TokenIds, Window
from gpt.model import GPT, eval_mode


class UncachedBackend:
    """The reference: the whole window through the model, without dropout, for every token; see `Window.build`."""

    cache_bytes = 0

    def __init__(self, model: GPT, slide_chunk: int | None = None) -> None:
        self.model = model
        self.window = Window.build(model.config.block_size, slide_chunk)
        self.device = next(model.parameters()).device

    def next_logits(self, sequences: Sequence[TokenIds]) -> Tensor:
        windows = [self.window.of(sequence) for sequence in sequences]
        with eval_mode(self.model):
            logits = self.model(pad(windows, self.device))  # padding comes at the end, where causality hides it
        last = pad([[len(window) - 1] for window in windows], self.device).squeeze(1)
        return logits[torch.arange(len(windows), device=self.device), last]

    def select(self, indices: Sequence[int]) -> None:
        """Do nothing: nothing is kept."""


class CachedBackend:
    """Computes each position once: prefill what is new to the cache, then one token per sequence.

    Args:
        model: computes the logits, without dropout in either mode.
        slide_chunk: see `Window.build`.
        kv_dtype: type of the cache, one of `KV_DTYPES`.
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

    def next_logits(self, sequences: Sequence[TokenIds]) -> Tensor:
        starts = [self.window.start(len(sequence)) for sequence in sequences]
        newest = pad([sequence[-1:] for sequence in sequences], self.device)
        with eval_mode(self.model):
            cache = self._cache = self._fill(sequences, starts)
            self._starts = starts
            return self._step(cache, newest)[:, -1]

    def select(self, indices: Sequence[int]) -> None:
        if self._cache is not None:
            self._cache = self._cache.select(indices)
            self._starts = [self._starts[index] for index in indices]

    def _step(self, cache: KVCache, newest: Tensor) -> Tensor:
        """Return the logits (B, 1, V) after the newest tokens (B, 1), and store their keys and values."""
        logits: Tensor = self.model(newest, cache=cache)
        return logits

    def _fill(self, sequences: Sequence[TokenIds], starts: list[int]) -> KVCache:
        """Return a cache that holds each window but for its newest token."""
        olds = [tuple(sequence[start:-1]) for sequence, start in zip(sequences, starts, strict=True)]
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
        """Return a cache of these windows; equal ones are computed once."""
        distinct = list(dict.fromkeys(windows))
        cache = KVCache(self.model.config, len(distinct), None, self.kv_dtype, self.device)
        idx = pad(distinct, self.device)
        for piece in torch.split(idx, min(self.prefill_chunk, idx.size(1)), dim=1) if idx.size(1) else ():
            self.model(piece, cache=cache)
        cache.truncate([len(window) for window in distinct])
        if len(distinct) == len(windows):
            return cache
        place = {window: row for row, window in enumerate(distinct)}
        return cache.select([place[window] for window in windows])


def pad(sequences: Sequence[TokenIds], device: torch.device) -> Tensor:
    """Return a batch (B, T), padded with id 0 at the end, without waiting for the device."""
    longest = max(map(len, sequences))
    padded = torch.tensor([[*ids, *(0,) * (longest - len(ids))] for ids in sequences], dtype=torch.long)
    return padded.to(device, non_blocking=True)
