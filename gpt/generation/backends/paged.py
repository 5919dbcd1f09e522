"""Sequences of tokens whose keys and values lie in the blocks of an engine."""

from collections.abc import Sequence

from gpt.cache.paged import BlockPool, BlockTable
from gpt.generation.backends import TokenIds
from gpt.kernels.decoding.engine import Engine
from gpt.kernels.decoding.layout import BLOCK


class PagedSequences:
    """The sequences of an engine; blocks that several of them begin with are computed and stored once.

    Attributes:
        engine: computes them; its sequence i is sequence i here.

    Args:
        engine: used by nothing else.
        prefill_chunk: most positions computed at a time; None: as many as the engine has room for.
    """

    def __init__(self, engine: Engine, prefill_chunk: int | None = None) -> None:
        self.engine = engine
        self._chunk = min(prefill_chunk or engine.max_tokens, engine.max_tokens)
        self._pool = BlockPool(engine.blocks, BLOCK)
        self._tables = [BlockTable(self._pool) for _ in range(engine.sequences)]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the blocks in use."""
        return self._pool.in_use * self.engine.block_bytes

    def missing(self, index: int, tokens: TokenIds) -> TokenIds:
        """Return the given tokens of a sequence from the first one on that is not stored."""
        return tokens[_common_prefix(self._tables[index].tokens, tokens) :]

    def store(self, indices: Sequence[int], wanted: Sequence[TokenIds]) -> None:
        """Set the tokens of some sequences, and compute those that are not stored.

        Args:
            indices: of the sequences, all different.
            wanted: tokens of each, all in the vocabulary.
        """
        for index, tokens in zip(indices, wanted, strict=True):
            self._tables[index].truncate(_common_prefix(self._tables[index].tokens, tokens))
        first: dict[tuple[int, ...], int] = {}
        copies: list[tuple[int, int]] = []
        for index, tokens in zip(indices, map(tuple, wanted), strict=True):
            if len(self._tables[index].tokens) < len(tokens) and first.setdefault(tokens, index) != index:
                copies.append((index, first[tokens]))
        self._prefill(first)
        for index, source in copies:
            self._tables[index].truncate(0)
            self._tables[index] = self._tables[source].fork()

    def reserve(self, indices: Sequence[int], counts: Sequence[int]) -> None:
        """Reserve blocks of their own for `counts[i]` more positions of sequence `indices[i]`."""
        copies = []
        for index, count in zip(indices, counts, strict=True):
            table = self._tables[index]
            copies += table.reserve(len(table.tokens) + count)
            self.engine.set_blocks(index, table.blocks)
        self.engine.copy_blocks(copies)

    def append(self, index: int, tokens: TokenIds) -> None:
        """Count tokens as stored, after a pass over reserved positions has computed them."""
        self._tables[index].append(tokens)

    def select(self, indices: Sequence[int]) -> None:
        """Make sequence i what sequence `indices[i]` was, and the others empty."""
        chosen = [self._tables[index].fork() for index in indices]
        for table in self._tables:
            table.truncate(0)
        self._tables = chosen + self._tables[len(chosen) :]

    def _prefill(self, index_of: dict[tuple[int, ...], int]) -> None:
        """Store lists of tokens, one after the other where they begin with the same block, so that they share it."""
        batch: dict[int, tuple[int, ...]] = {}
        beginnings: set[tuple[int, ...]] = set()
        for tokens, index in index_of.items():
            if tokens[:BLOCK] in beginnings:
                self._compute(batch)
                batch, beginnings = {}, set()
            if not self._tables[index].tokens:
                self._tables[index].match(tokens)
            batch[index] = tokens
            beginnings.add(tokens[:BLOCK])
        self._compute(batch)

    def _compute(self, batch: dict[int, tuple[int, ...]]) -> None:
        """Compute and store the tokens of some sequences that are not stored yet."""
        new = {index: tokens[len(self._tables[index].tokens) :] for index, tokens in batch.items()}
        self.reserve(list(new), [len(tokens) for tokens in new.values()])
        places = [
            (token, index, position)
            for index, tokens in new.items()
            for position, token in enumerate(tokens, start=len(self._tables[index].tokens))
        ]
        for start in range(0, len(places), self._chunk):
            tokens, sequences, positions = zip(*places[start : start + self._chunk], strict=True)
            self.engine.forward(tokens, sequences, positions, wanted=())
        for index, tokens in new.items():
            self.append(index, tokens)


def _common_prefix(stored: list[int], tokens: TokenIds) -> int:
    """Return the length of the common prefix."""
    if stored[: len(tokens)] == list(tokens):
        return len(tokens)
    return next((i for i, (a, b) in enumerate(zip(stored, tokens, strict=False)) if a != b), len(stored))
