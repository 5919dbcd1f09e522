"""Paged key/value caches: which blocks of memory a sequence has (Kwon et al. 2023, 2309.06180).

A physical block holds the keys and values of `block_size` neighboring positions; sequences that
begin alike share blocks. This module only counts: the memory belongs to a runner.
"""

import hashlib
from array import array
from collections.abc import Sequence

from gpt.native.contract import BLOCK as BLOCK


class OutOfBlocksError(Exception):
    """Too few blocks are free; nothing has changed."""


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a full block: a hash of its tokens and of the key of the block before it.

    The keys and values of a position depend on all tokens up to it, and so does this chain of
    hashes, which takes the same memory for every block (the prefix cache of vLLM). A key has 128
    bits: nobody can find two texts with the same key, by which one user would get another's blocks.

    Args:
        parent: the key of the block before it; empty for the first block.
    """
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Reference counts of physical blocks, and a prefix cache: an index of full blocks by key.

    A block without references is free, and can be found by its key until its memory is needed: the
    one that was released first is overwritten first.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        assert blocks >= 0
        assert block_size >= 1
        self.block_size = block_size
        self._references = [0] * blocks
        # Free blocks outside of the index. The lowest one is taken first, from the end of the list,
        # so that the blocks of a first sequence lie side by side.
        self._empty = list(reversed(range(blocks)))
        # Free blocks in the index, in the order of their release: a dict is an ordered set.
        self._reusable: dict[int, None] = {}
        # The index, by the keys of `block_key`, and its inverse.
        self._block_by_key: dict[bytes, int] = {}
        self._key_by_block: dict[int, bytes] = {}

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
            OutOfBlocksError: no block is free.
        """
        # Blocks that are not in the index go first, so that the others can be found for longer.
        if self._empty:
            block = self._empty.pop()
        elif self._reusable:
            block = next(iter(self._reusable))  # the one that was released first
            del self._reusable[block]
            self.forget(block)
        else:
            raise OutOfBlocksError
        self._references[block] = 1
        return block

    def reference(self, block: int) -> None:
        """Add a reference to a block in use."""
        assert self._references[block] > 0
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference to a block; a block without references is free."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block] > 0:
            return
        if block in self._key_by_block:
            # The content stays for a later sequence that begins with the same tokens. The dict is
            # an ordered set, whose values mean nothing.
            self._reusable[block] = None
        else:
            self._empty.append(block)

    def is_shared(self, block: int) -> bool:
        """Return whether a block has several references, so that it must not be written."""
        return self._references[block] > 1

    def remember(self, block: int, key: bytes) -> None:
        """Index a full block in use by its key, unless another block has the same key.

        Two sequences may have computed the same tokens in one step; one of the blocks is enough.
        """
        assert self._references[block] > 0
        if key not in self._block_by_key:
            assert block not in self._key_by_block
            self._block_by_key[key] = block
            self._key_by_block[block] = key

    def forget(self, block: int) -> None:
        """Remove a block from the index, since it is about to be written."""
        key = self._key_by_block.pop(block, None)
        if key is not None:
            del self._block_by_key[key]

    def find(self, key: bytes) -> int | None:
        """Return the block of a key, and add a reference to it; None if no block has it."""
        block = self._block_by_key.get(key)
        if block is not None:
            self._references[block] += 1
            self._reusable.pop(block, None)  # the block may have been free
        return block


class BlockTable:
    """The physical blocks of one sequence, in order.

    To store more positions: `reserve` them, carry out the copies that it returns, compute keys and
    values, then `append` their tokens.

    Attributes:
        blocks: the last ones may be reserved and still empty.
        tokens: the tokens whose keys and values are stored.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.tokens: list[int] = []
        self._keys: list[bytes] = []  # of the full blocks

    def match(self, tokens: Sequence[int]) -> None:
        """Append blocks of the pool that hold the sequence's next tokens.

        The blocks that the sequence already has must all be full.

        Args:
            tokens: the whole sequence, which begins with the stored tokens.
        """
        size = self._pool.block_size
        assert len(self.tokens) == size * len(self.blocks)
        # Only full blocks can be found, so the last start is one block before the end.
        for start in range(len(self.tokens), len(tokens) - size + 1, size):
            content = tokens[start : start + size]
            key = self.next_key(content)
            block = self._pool.find(key)
            if block is None:
                break  # no later block can be used either, since blocks are stored in order
            self.blocks.append(block)
            self._keys.append(key)
            self.tokens += content

    def next_key(self, tokens: Sequence[int]) -> bytes:
        """Return the key that the block after the full ones has if it gets these tokens."""
        parent = self._keys[-1] if self._keys else b""
        return block_key(parent, tokens)

    def fork(self) -> "BlockTable":
        """Return a copy of the table that shares all blocks with stored positions."""
        copy = BlockTable(self._pool)
        copy.blocks = self.blocks[: self._blocks_for(len(self.tokens))]
        copy.tokens = list(self.tokens)
        copy._keys = list(self._keys)
        for block in copy.blocks:
            self._pool.reference(block)
        return copy

    def reserve(self, length: int) -> list[tuple[int, int]]:
        """Reserve unshared blocks for the positions after the stored ones, up to `length` in total.

        Returns:
            Copies to make before the blocks are written: pairs of a target and a source block.

        Raises:
            OutOfBlocksError: there are not enough free blocks; nothing has changed.
        """
        # Only the first block to write can be shared: later blocks are new or still empty.
        first = len(self.tokens) // self._pool.block_size
        is_written = length > len(self.tokens) and first < len(self.blocks)
        is_shared = is_written and self._pool.is_shared(self.blocks[first])
        missing = max(0, self._blocks_for(length) - len(self.blocks))
        # The blocks are counted before anything changes, so that an error leaves all as it was.
        needed = missing
        if is_shared:
            needed += 1  # the copy
        if needed > self._pool.free:
            raise OutOfBlocksError
        copies = []
        if is_shared:
            # Other sequences still read the shared block, so that this one writes into a copy.
            shared = self.blocks[first]
            self.blocks[first] = self._pool.allocate()
            self._pool.release(shared)
            copies.append((self.blocks[first], shared))
        elif is_written:
            # The block must no longer be found by the key of its old content.
            self._pool.forget(self.blocks[first])
        allocated = [self._pool.allocate() for _ in range(missing)]
        self.blocks += sorted(allocated)  # neighboring blocks can be read where they lie
        return copies

    def append(self, tokens: Sequence[int]) -> None:
        """Count reserved positions as stored; blocks that are full can be found from now on.

        Only full blocks get a key, since the content of the others will change.
        """
        size = self._pool.block_size
        first = len(self.tokens) // size  # the first block that was written
        self.tokens += tokens
        num_full = len(self.tokens) // size
        assert self._blocks_for(len(self.tokens)) <= len(self.blocks)
        for index in range(first, num_full):
            content = self.tokens[index * size : (index + 1) * size]
            key = self.next_key(content)
            self._keys.append(key)
            self._pool.remember(self.blocks[index], key)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions, and release blocks that they do not need."""
        del self.tokens[length:]
        del self._keys[length // self._pool.block_size :]
        # Only full blocks have keys, and so their number was rounded down. The number of blocks is
        # rounded up, since the last one may be partly full.
        kept = self._blocks_for(len(self.tokens))
        # Blocks are overwritten in the order of their release. The first ones of a sequence, which
        # most others share, are released last.
        for block in reversed(self.blocks[kept:]):
            self._pool.release(block)
        del self.blocks[kept:]

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._pool.block_size)  # rounded up
