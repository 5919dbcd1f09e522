"""What a model sees of a text that is longer than its window."""


def window_start(length: int, block_size: int, chunk: int) -> int:
    """Where the window begins in a text of `length` tokens.

    It holds the whole text while that fits, and then moves in steps of `chunk`, so that a cache has to
    be filled anew once in `chunk` tokens and not at every one. With chunk 1 it is always the last
    `block_size` tokens.
    """
    if length <= block_size:
        return 0
    steps = -(-(length - block_size) // chunk)
    return steps * chunk


def default_chunk(block_size: int) -> int:
    """A quarter of the window: at least three quarters of it are always in sight."""
    return max(1, block_size // 4)
