"""A corpus much larger than what is read of it must not fill the memory."""

import subprocess
import sys
from pathlib import Path

from drills.frame import ROOT, Break, Drill, Tally
from patience import PATIENCE

READER = """
import resource, sys
import numpy as np
from gpt.data.batches import BatchSampler
tokens = np.memmap(sys.argv[1], dtype=np.uint8, mode="r")
sampler = BatchSampler(tokens, block_size=64, seed=0)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sampler.get_batch(64)
before = peak()
for _ in range(400):
    sampler.get_batch(64)
print(peak() - before)
"""


EVALUATION = """
import resource, sys
import numpy as np
from gpt.evaluation.windows import full_batches
tokens = np.memmap(sys.argv[1], dtype=np.uint8, mode="r")[: 100 << 20]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
next(full_batches(tokens, 64, 512))
before = peak()
for _ in full_batches(tokens, 64, 512):
    pass
print(peak() - before)
"""

BREAKS = (
    Break(
        "pages that were read stay in memory",
        "gpt/data/tokens.py",
        "> KEEP_RESIDENT",
        "> KEEP_RESIDENT << 20",
    ),
)
MAX_KIB = 50 << 10


def run(folder: Path, full: bool) -> Tally:
    """Read a corpus of 400 MB in random windows, and 100 MB of it in order."""
    tally = Tally("ways of reading 400 MB", "filled the memory")
    file = folder / "tokens.bin"
    with file.open("wb") as empty:
        empty.truncate(400 << 20)  # a hole: it takes memory when it is read, and no disk
    for name, program in (("training", READER), ("evaluation", EVALUATION)):
        command = [sys.executable, "-c", program, str(file)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
        grown_kib = int(result.stdout)
        tally.count("ways of reading 400 MB")
        good = tally.check(grown_kib < MAX_KIB, f"{name} took {grown_kib >> 10} MiB more")
        tally.count("filled the memory", not good)
    return tally


DRILL = Drill("A corpus larger than memory is read at less than 50 MiB.", run, BREAKS, alone=True)
