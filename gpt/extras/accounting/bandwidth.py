"""Measure how fast this machine reads its memory."""

import time

import torch

from gpt.system.machine import synchronize


def measure_bandwidth(device: torch.device, nbytes: int, seconds: float = 0.3) -> float:
    """Measure the bytes/s of a matrix-vector product with a float32 matrix of `nbytes`, the best of many.

    Decoding reads the weights in this way. A small matrix stays in the processor's cache, as the weights
    of a small model do, so choose their size. Other work on the machine can spoil a single try.
    """
    width = 1024
    rows = max(1, nbytes // (width * torch.float32.itemsize))
    # pages of zeros may not be allocated at all
    matrix = torch.ones(rows, width, dtype=torch.float32, device=device)
    vector = torch.ones(width, dtype=torch.float32, device=device)
    best, end = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        torch.mv(matrix, vector)
        synchronize(device)
        best = max(best, matrix.nbytes / (time.perf_counter() - start))
    return best
