"""A corpus much larger than what is read of it does not fill the memory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gpt.data.batches import BatchSampler
from gpt.training.loss import full_batches

SIZE = 400 << 20
PART = 120 << 20
MAX_BYTES = 50 << 20
"""Less than half of what either test reads, so that pages which are kept are noticed."""
STATM = Path("/proc/self/statm")


def random_windows(tokens: NDArray[np.uint8]) -> Iterator[object]:
    sampler = BatchSampler(tokens, block_size=64, seed=0)
    return (sampler.get_batch(64) for _ in range(1000))


def a_part_in_order(tokens: NDArray[np.uint8]) -> Iterator[object]:
    return iter(full_batches(tokens[:PART], 64, 512))


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="the memory in use is told by Linux only")
@pytest.mark.parametrize("read", [random_windows, a_part_in_order])
def test_reading_all_over_a_large_file_keeps_the_memory_constant(
    read: Callable[[NDArray[np.uint8]], Iterator[object]], tmp_path: Path
) -> None:
    with (tmp_path / "tokens.bin").open("wb") as empty:
        empty.truncate(SIZE)  # a hole: it takes memory when it is read, and no disk
    batches = read(np.memmap(tmp_path / "tokens.bin", dtype=np.uint8, mode="r"))
    next(batches)
    before = resident_bytes()
    assert max(resident_bytes() - before for _ in batches) < MAX_BYTES
