"""Sequences of tokens whose keys and values lie in the blocks of an engine."""

from collections.abc import Sequence

from gpt.cache.paged import BlockPool, BlockTable
from gpt.generation.backends import TokenIds
from gpt.kernels.decoding.engine import Engine
from gpt.kernels.decoding.layout import BLOCK


class PagedSequences:
    """As many sequences as an engine has; blocks that several of them begin with are computed and stored once.

    Attributes:
        engine: computes them; sequence i here is sequence i there.

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

    def missing(self, row: int, tokens: TokenIds) -> TokenIds:
        """Return the tokens that differ from what a sequence has stored, from the first one on."""
        return tokens[_common(self._tables[row].tokens, tokens) :]

    def store(self, rows: Sequence[int], wanted: Sequence[TokenIds]) -> None:
        """Make some sequences these tokens, and compute what is not stored.

        Args:
            rows: different ones.
            wanted: tokens of each, all in the vocabulary.
        """
        for row, tokens in zip(rows, wanted, strict=True):
            self._tables[row].truncate(_common(self._tables[row].tokens, tokens))
        first: dict[tuple[int, ...], int] = {}
        copies: list[tuple[int, int]] = []
        for row, tokens in zip(rows, map(tuple, wanted), strict=True):
            if len(self._tables[row].tokens) < len(tokens) and first.setdefault(tokens, row) != row:
                copies.append((row, first[tokens]))
        self._prefill(first)
        for row, source in copies:
            self._tables[row].truncate(0)
            self._tables[row] = self._tables[source].fork()

    def reserve(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Reserve blocks of their own for `counts[i]` more positions of sequence `rows[i]`."""
        copies = []
        for row, count in zip(rows, counts, strict=True):
            table = self._tables[row]
            copies += table.reserve(len(table.tokens) + count)
            self.engine.set_blocks(row, table.blocks)
        self.engine.copy_blocks(copies)

    def append(self, row: int, tokens: TokenIds) -> None:
        """Count tokens as stored, after a pass over reserved positions has computed them."""
        self._tables[row].append(tokens)

    def select(self, rows: Sequence[int]) -> None:
        """Make sequence i what sequence `rows[i]` was, and the others empty."""
        chosen = [self._tables[row].fork() for row in rows]
        for table in self._tables:
            table.truncate(0)
        self._tables = chosen + self._tables[len(chosen) :]

    def _prefill(self, row_of: dict[tuple[int, ...], int]) -> None:
        """Store different lists of tokens, as many of them at a time as do not begin with the same block."""
        batch: dict[int, tuple[int, ...]] = {}
        beginnings: set[tuple[int, ...]] = set()
        for tokens, row in row_of.items():
            if tokens[:BLOCK] in beginnings:
                self._compute(batch)
                batch, beginnings = {}, set()
            if not self._tables[row].tokens:
                self._tables[row].match(tokens)
            batch[row] = tokens
            beginnings.add(tokens[:BLOCK])
        self._compute(batch)

    def _compute(self, batch: dict[int, tuple[int, ...]]) -> None:
        """Store the tokens of some rows, from the first that is not stored on."""
        new = {row: tokens[len(self._tables[row].tokens) :] for row, tokens in batch.items()}
        self.reserve(list(new), [len(tokens) for tokens in new.values()])
        places = [
            (token, row, position)
            for row, tokens in new.items()
            for position, token in enumerate(tokens, start=len(self._tables[row].tokens))
        ]
        for start in range(0, len(places), self._chunk):
            tokens, sequences, positions = zip(*places[start : start + self._chunk], strict=True)
            self.engine.forward(tokens, sequences, positions, wanted=())
        for row, tokens in new.items():
            self.append(row, tokens)


def _common(stored: list[int], tokens: TokenIds) -> int:
    """Return the length of the beginning that both share."""
    if stored[: len(tokens)] == list(tokens):
        return len(tokens)
    return next((i for i, (a, b) in enumerate(zip(stored, tokens, strict=False)) if a != b), len(stored))
