"""A corpus much larger than what is read of it must not fill the memory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from drills.frame import Drill, Tally
from gpt.data.batches import BatchSampler
from gpt.evaluation.windows import full_batches

SIZE, PART = 400 << 20, 60 << 20
MAX_BYTES = 50 << 20


def train(file: Path) -> Iterator[object]:
    """Read random windows of all of it."""
    sampler = BatchSampler(np.memmap(file, dtype=np.uint8, mode="r"), block_size=64, seed=0)
    return (sampler.get_batch(64) for _ in range(250))


def evaluate(file: Path) -> Iterator[object]:
    """Read a part of it in order."""
    return iter(full_batches(np.memmap(file, dtype=np.uint8, mode="r")[:PART], 64, 512))


def grown(read: Callable[[Path], Iterator[object]], file: Path) -> int:
    """Return by how many resident bytes this process grows at most after the first batch."""
    batches = read(file)
    next(batches)
    before = most = resident_bytes()
    for _ in batches:
        most = max(most, resident_bytes())
    return most - before


def resident_bytes() -> int:
    """Return the memory in use; where the system does not tell, the most so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(folder: Path, full: bool) -> Tally:
    """Read a corpus of 400 MB in random windows, and 60 MB of it in order."""
    tally = Tally("ways of reading 400 MB", "filled the memory")
    file = folder / "tokens.bin"
    with file.open("wb") as empty:
        empty.truncate(SIZE)  # a hole: it takes memory when it is read, and no disk
    for read in (train, evaluate):
        more = grown(read, file)
        tally.count("ways of reading 400 MB")
        good = tally.check(more < MAX_BYTES, f"{read.__name__} took {more >> 20} MiB more")
        tally.count("filled the memory", not good)
    return tally


DRILL = Drill("A corpus larger than memory is read at less than 50 MiB.", run, alone=True)
