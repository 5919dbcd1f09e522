"""How the C library's allocator is tuned."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, from its malloc.h."""


def keep_freed_memory() -> None:
    """Let the C library keep memory that tensors give back, for the next ones.

    A training step allocates the same tensors again and again, and every batch of texts its caches. By default
    glibc returns large ones to the system, which has to clear every page anew; a quarter of a step can go there.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
        mallopt = library.mallopt
    except (OSError, AttributeError):  # another C library has other ways
        return
    mallopt(MMAP_THRESHOLD, 1 << 30)
    mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
