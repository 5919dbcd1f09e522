"""A corpus much larger than what is read of it must not fill the memory."""

import subprocess
import sys
from pathlib import Path

import pytest

READER = """
import resource, sys
import numpy as np
from gpt.data import BatchSampler
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


@pytest.mark.parametrize("program", [READER, EVALUATION], ids=["training", "evaluation"])
def test_reading_all_over_a_large_file_keeps_the_memory_constant(program: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    with file.open("wb") as empty:
        empty.truncate(400 << 20)  # a hole: it takes memory when it is read, and no disk
    root = str(Path(__file__).resolve().parents[2])
    result = subprocess.run(
        [sys.executable, "-c", program, str(file)], cwd=root, capture_output=True, text=True, timeout=120, check=True
    )
    grown_kib = int(result.stdout)
    assert grown_kib < 50 * 1024
