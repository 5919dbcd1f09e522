"""Measure this machine's rates and this process's memory: matmul rate, bandwidth, peak bytes."""

import contextlib
import math
import os
import re
import time
from pathlib import Path

import torch


def measure_matmul_rate(
    device: torch.device, dtype: torch.dtype, size: int | None = None, repeats: int = 3, seconds: float = 0.5
) -> float:
    """Measure the FLOP/s of a square matmul, the best of a few: the reference for utilization.

    It has `size` rows, by default 8192 on CUDA, else 2048; fewer where such a matmul would take longer than `seconds`,
    as in a type for which the processor has no instructions.
    """
    size = size or (8192 if device.type == "cuda" else 2048)
    tried = min(size, 128)
    while tried < size and 64 * _time_matmul(device, dtype, tried, repeats=1) < seconds:
        tried = min(4 * tried, size)
    return 2 * tried**3 / _time_matmul(device, dtype, tried, repeats)


def _time_matmul(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """Return the seconds of the fastest of some square matmuls, after one that may also pay for initialization."""
    a = torch.randn(
        size, size, device=device, dtype=torch.float32, generator=torch.Generator(device).manual_seed(0)
    ).to(dtype)
    best = math.inf
    for _ in range(repeats + 1):
        _synchronize(device)
        start = time.perf_counter()
        torch.mm(a, a)
        _synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def measure_bandwidth(device: torch.device, nbytes: int, seconds: float = 0.3) -> float:
    """Measure the bytes/s of a matrix-vector product with a float32 matrix of `nbytes`, the best of many.

    Decoding reads the weights in this way. A small matrix stays in the processor's cache, as the weights
    of a small model do, so choose their size. Other work on the machine can spoil a single try.
    """
    width = 1024
    rows = max(1, nbytes // (width * torch.float32.itemsize))
    matrix = torch.ones(rows, width, dtype=torch.float32, device=device)  # pages of zeros may not be allocated at all
    vector = torch.ones(width, dtype=torch.float32, device=device)
    best, end = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < end:
        _synchronize(device)
        start = time.perf_counter()
        torch.mv(matrix, vector)
        _synchronize(device)
        best = max(best, matrix.nbytes / (time.perf_counter() - start))
    return best


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this process in bytes: on the CUDA device, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):  # Linux; its rusage would begin with the peak of the parent process
        status = Path("/proc/self/status").read_text(encoding="ascii")
        if found := re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE):
            return int(found.group(1)) * 1024
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if os.uname().sysname == "Darwin" else peak * 1024


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
