"""Measure this machine's matmul rate and this process's peak memory."""

import contextlib
import math
import os
import re
import time
from pathlib import Path

import torch


def measure_matmul_rate(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Measure the FLOP/s of a square matmul, the best of three: the reference for utilization.

    It has `size` rows, by default 8192 on CUDA, else 2048; fewer where such a matmul would take longer than half a
    second, as in a type for which the processor has no instructions.
    """
    size = size or (8192 if device.type == "cuda" else 2048)
    tried = min(size, 128)
    while tried < size and 64 * _time_matmul(device, dtype, tried, repeats=1) < 0.5:
        tried = min(4 * tried, size)
    return 2 * tried**3 / _time_matmul(device, dtype, tried, repeats=3)


def _time_matmul(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """Return the seconds of the fastest of some square matmuls, after one that may also pay for initialization."""
    a = torch.randn(
        size, size, device=device, dtype=torch.float32, generator=torch.Generator(device).manual_seed(0)
    ).to(dtype)
    best = math.inf
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(a, a)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
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


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
