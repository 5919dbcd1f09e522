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

    Args:
        size: the number of rows, by default 8192 on CUDA and 2048 elsewhere. The matrices are
            smaller if their matmul would take longer than half a second, as in a type for which the
            processor has no instructions.
    """
    if size is None:
        size = 8192 if device.type == "cuda" else 2048
    # Matrices of 128 rows are multiplied in a moment, even element by element.
    tried = min(size, 128)
    while tried < size:
        # Matrices of 4 times as many rows take 4^3 = 64 times as long.
        if 64 * _time_matmul(device, dtype, tried, repeats=1) >= 0.5:
            break
        tried = min(4 * tried, size)
    num_flops = 2 * tried**3  # a multiplication and an addition for each product
    return num_flops / _time_matmul(device, dtype, tried, repeats=3)


def _time_matmul(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """Return the seconds of the fastest of some square matmuls."""
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(size, size, device=device, dtype=torch.float32, generator=generator).to(dtype)
    best = math.inf
    # One more, because the first matmul of a process may also pay for initialization.
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
    # Linux has this file. Its getrusage would begin with the peak of the parent process.
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
        if found:
            return int(found.group(1)) * 1024
    try:
        import resource
    except ImportError:
        return 0  # Windows does not have this module
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    is_in_bytes = os.uname().sysname == "Darwin"  # elsewhere it is in KiB
    return peak if is_in_bytes else peak * 1024


def synchronize(device: torch.device) -> None:
    """Wait until a device has computed all that it was given; the CPU has always done so."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
