"""What usually comes next: the most frequent continuation of every short context of a text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gpt.data.dataset import Tokens

LONGEST_CONTEXT = 8
MOST_TOKENS = 4_000_000
"""Of the text that are read, from its end: more would take long, and change little."""
MOST_BYTES = 500_000
ENTRY_BYTES = 12
"""Of a context and what follows it, as they are saved."""


@dataclass(frozen=True)
class NgramTable:
    """The most frequent token after a context; a longer context counts more than a shorter one.

    A context is kept only where it changes what a shorter one says, and the most frequent ones first, up to
    `MOST_BYTES`.

    Attributes:
        vocab_size: of the ids.
        keys: of each length from 1 on, contexts as numbers in base `vocab_size`, int64.
        tokens: what follows each, int32.
    """

    vocab_size: int
    keys: tuple[Tensor, ...]
    tokens: tuple[Tensor, ...]
    _maps: list[dict[int, int]] = field(init=False, repr=False, compare=False, default_factory=list)

    @classmethod
    def learn(cls, text: Tokens, vocab_size: int) -> "NgramTable":
        """From a text's tokens."""
        ids = np.asarray(text[-MOST_TOKENS:]).astype(np.int64)
        kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        shorter: tuple[np.ndarray, np.ndarray] | None = None
        for length in range(1, _longest(vocab_size) + 1):
            if len(ids) <= length:
                break
            keys, tokens, counts = _most_frequent(ids, length, vocab_size)
            changes = np.ones(len(keys), dtype=bool)
            if shorter is not None:
                place = np.searchsorted(shorter[0], keys % vocab_size ** (length - 1))
                changes = shorter[1][place.clip(max=len(shorter[0]) - 1)] != tokens
            kept.append((keys[changes], tokens[changes], counts[changes]))
            shorter = keys, tokens
        return cls(vocab_size, *_largest(kept))

    def next(self, context: Sequence[int]) -> int | None:
        """The likeliest token, or None where the last one of the context never had one behind it."""
        if not self._maps:
            for keys, tokens in zip(self.keys, self.tokens, strict=True):
                self._maps.append(dict(zip(keys.tolist(), tokens.tolist(), strict=True)))
        key, scale, found = 0, 1, None
        for token, known in zip(reversed(context[-len(self._maps) :]), self._maps, strict=False):
            key += token * scale
            scale *= self.vocab_size
            found = known.get(key, found)
        return found

    def to_tensors(self) -> dict[str, Tensor]:
        """To save."""
        named = {"vocab_size": torch.tensor(self.vocab_size)}
        for length, (keys, tokens) in enumerate(zip(self.keys, self.tokens, strict=True), start=1):
            named |= {f"{length}.keys": keys, f"{length}.tokens": tokens}
        return named

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "NgramTable":
        """From what `to_tensors` gave.

        Raises:
            KeyError: something is missing.
        """
        lengths = range(1, (len(tensors) - 1) // 2 + 1)
        keys, tokens = (tuple(tensors[f"{length}.{name}"] for length in lengths) for name in ("keys", "tokens"))
        return cls(int(tensors["vocab_size"]), keys, tokens)


def _longest(vocab_size: int) -> int:
    """Length of contexts whose numbers, with one token more, fit into 63 bits."""
    length = LONGEST_CONTEXT
    while length > 1 and vocab_size ** (length + 1) >= 2**63:
        length -= 1
    return length


def _most_frequent(ids: np.ndarray, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts in ascending order, the token that follows each most often, and how often; of equals the lowest."""
    keys = np.zeros(len(ids) - length, dtype=np.int64)
    for place in range(length + 1):  # the context, and the token behind it
        keys = keys * vocab_size + ids[place : len(ids) - length + place]
    pairs, counts = np.unique(keys, return_counts=True)
    contexts = pairs // vocab_size
    best_first = np.lexsort((pairs, -counts, contexts))
    contexts, first = np.unique(contexts[best_first], return_index=True)
    best = best_first[first]
    return contexts, pairs[best] % vocab_size, counts[best]


def _largest(
    kept: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """As many of the most frequent as `MOST_BYTES` hold."""
    counts = np.concatenate([count for _, _, count in kept]) if kept else np.zeros(0)
    room = MOST_BYTES // ENTRY_BYTES
    least = 0 if len(counts) <= room else np.partition(counts, len(counts) - room)[len(counts) - room]
    chosen = [count > least if len(counts) > room else count >= least for _, _, count in kept]
    keys = tuple(torch.from_numpy(keys[c].copy()) for (keys, _, _), c in zip(kept, chosen, strict=True))
    tokens = tuple(torch.from_numpy(tokens[c].astype(np.int32)) for (_, tokens, _), c in zip(kept, chosen, strict=True))
    return keys, tokens
