"""Measure how fast this machine reads its memory."""

import time

import torch

from gpt.system.machine import synchronize


def measure_bandwidth(device: torch.device, nbytes: int, seconds: float = 0.3) -> float:
    """Return how many bytes/s this machine reads: the best of many matrix-vector products.

    Decoding reads the weights in the same way: each once, for one product and one sum. The best
    time counts, since other work on the machine can slow down a single product.

    Args:
        nbytes: the size of the float32 matrix. Choose that of the weights, because the processor's
            cache holds a small matrix, as it holds the weights of a small model.
        seconds: how long to repeat the product.
    """
    width = 1024  # any width that fills the lanes of a processor; the rows make up the size
    rows = max(1, nbytes // (width * torch.float32.itemsize))
    # Ones, since the system may not allocate the pages of a matrix of zeros.
    matrix = torch.ones(rows, width, dtype=torch.float32, device=device)
    vector = torch.ones(width, dtype=torch.float32, device=device)
    best = 0.0
    end = time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < end:  # at least once
        synchronize(device)  # a GPU computes after the call has returned
        start = time.perf_counter()
        torch.mv(matrix, vector)
        synchronize(device)
        best = max(best, matrix.nbytes / (time.perf_counter() - start))
    return best
