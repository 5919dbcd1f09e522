"""Paged key/value caches: the memory blocks of a sequence, some of them shared (Kwon et al. 2023, 2309.06180).

A physical block holds the keys and values of `block_size` neighboring positions. This module only counts; the
backend owns the memory.
"""

import hashlib
from array import array
from collections.abc import Sequence

BLOCK = 64
"""Positions in a block, as in the C++ engine."""


class OutOfBlocksError(Exception):
    """Too few blocks are free; nothing has changed."""


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a full block: a hash of its tokens and of the key of the block before it, if there is one.

    The keys and values of a position depend on all tokens up to it, and so does this chain of hashes, in constant
    memory a block (the prefix cache of vLLM); 128 bits, so that nobody finds two texts of one key.
    """
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Reference counts of physical blocks, and a prefix cache: an index of full blocks by their `block_key`.

    A block without references is free, and can be found until its memory is needed: the one released first is
    overwritten first.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        assert blocks >= 0
        assert block_size >= 1
        self.block_size = block_size
        self._references = [0] * blocks
        self._empty = list(reversed(range(blocks)))
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._reusable: dict[int, None] = {}  # free blocks that have a key, in the order in which they were released

    @property
    def blocks(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        return len(self._empty) + len(self._reusable)

    @property
    def in_use(self) -> int:
        return self.blocks - self.free

    def allocate(self) -> int:
        """Return a free block, referenced once.

        Raises:
            OutOfBlocksError: there is none.
        """
        if not self.free:
            raise OutOfBlocksError
        block = self._empty.pop() if self._empty else next(iter(self._reusable))
        self._reusable.pop(block, None)
        self.forget(block)
        self._references[block] = 1
        return block

    def reference(self, block: int) -> None:
        """Add a reference to a block in use."""
        assert self._references[block] > 0
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference to a block; without any it is free."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block] == 0:
            if block in self._keys:
                self._reusable[block] = None
            else:
                self._empty.append(block)

    def is_shared(self, block: int) -> bool:
        """Return whether a block has several references, so that it must not be written."""
        return self._references[block] > 1

    def remember(self, block: int, key: bytes) -> None:
        """Index a full block in use by its key, unless another block has the same."""
        assert self._references[block] > 0
        if key not in self._by_key:
            assert block not in self._keys
            self._by_key[key], self._keys[block] = block, key

    def forget(self, block: int) -> None:
        """Remove a block from the index: it is about to be written."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._by_key[key]

    def find(self, key: bytes) -> int | None:
        """Return the block of a key, and add a reference to it; None if there is none."""
        block = self._by_key.get(key)
        if block is not None:
            self._references[block] += 1
            self._reusable.pop(block, None)
        return block


class BlockTable:
    """The physical blocks of one sequence, in order.

    To store more positions: `reserve` them, carry out the copies that it returns, compute, then `append` their tokens.

    `tokens` are those whose keys and values are stored; the last `blocks` may be reserved and empty.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.tokens: list[int] = []
        self._keys: list[bytes] = []  # of the full blocks

    def match(self, tokens: Sequence[int]) -> None:
        """Append blocks of the pool that hold the sequence's next tokens; its own blocks must all be full.

        Args:
            tokens: the whole sequence, which begins with the stored tokens.
        """
        size = self._pool.block_size
        assert len(self.tokens) == size * len(self.blocks)
        for end in range(len(self.tokens) + size, len(tokens) + 1, size):
            key = self.next_key(tokens[end - size : end])
            block = self._pool.find(key)
            if block is None:
                break
            self.blocks.append(block)
            self._keys.append(key)
            self.tokens += tokens[end - size : end]

    def next_key(self, tokens: Sequence[int]) -> bytes:
        """Return the key that the block after the full ones has if it gets these tokens."""
        return block_key(self._keys[-1] if self._keys else b"", tokens)

    def fork(self) -> "BlockTable":
        """Return a copy of the sequence, which shares all blocks."""
        other = BlockTable(self._pool)
        other.blocks, other.tokens = self.blocks[: self._blocks_for(len(self.tokens))], list(self.tokens)
        other._keys = list(self._keys)
        for block in other.blocks:
            self._pool.reference(block)
        return other

    def reserve(self, length: int) -> list[tuple[int, int]]:
        """Reserve unshared blocks for the positions after the stored ones, up to `length` in total.

        Returns:
            Copies to make before the blocks are written: pairs of a target and a source block.

        Raises:
            OutOfBlocksError: there are not enough free blocks; nothing has changed.
        """
        first = len(self.tokens) // self._pool.block_size  # the first that is written
        added = max(0, self._blocks_for(length) - len(self.blocks))
        is_written = length > len(self.tokens) and first < len(self.blocks)
        is_shared = is_written and self._pool.is_shared(self.blocks[first])
        if added + is_shared > self._pool.free:
            raise OutOfBlocksError
        copies = []
        if is_shared:
            shared, self.blocks[first] = self.blocks[first], self._pool.allocate()
            self._pool.release(shared)
            copies.append((self.blocks[first], shared))
        elif is_written:
            self._pool.forget(self.blocks[first])
        self.blocks += sorted(self._pool.allocate() for _ in range(added))  # neighbors are read where they are
        return copies

    def append(self, tokens: Sequence[int]) -> None:
        """Count reserved positions as stored; blocks that are full can be found from now on."""
        size, start = self._pool.block_size, len(self.tokens)
        self.tokens += tokens
        assert self._blocks_for(len(self.tokens)) <= len(self.blocks)
        for end in range((start // size + 1) * size, len(self.tokens) + 1, size):
            self._keys.append(self.next_key(self.tokens[end - size : end]))
            self._pool.remember(self.blocks[end // size - 1], self._keys[-1])

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions, and release what they do not need."""
        del self.tokens[length:], self._keys[length // self._pool.block_size :]
        kept = self._blocks_for(len(self.tokens))
        for block in reversed(self.blocks[kept:]):  # later blocks are shared less, so release them first
            self._pool.release(block)
        del self.blocks[kept:]

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._pool.block_size)
