"""What a run computes on and in: device, dtype, compiler, threads, and how fast the machine multiplies."""

import contextlib
import ctypes
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.config.sections import DEVICE_PATTERN, RunConfig
from gpt.errors import DeviceError
from gpt.processor import Processor, supported_processors
from gpt.report import Report

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, from its malloc.h."""


@dataclass(frozen=True)
class Compute:
    """A resolved choice.

    Attributes:
        device: where tensors live.
        dtype: type of matmuls under autocast; float32 means no autocast.
        compile: whether blocks are to be compiled.
        fast_dtype: the type in which the device multiplies fastest, for matmuls that need few digits.
    """

    device: torch.device
    dtype: torch.dtype
    compile: bool
    fast_dtype: torch.dtype = torch.float32

    def autocast(self) -> torch.autocast:
        """Return a context in which matmuls run in `dtype`."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def __str__(self) -> str:
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.device}{threads}, {name}, {'compiled' if self.compile else 'eager'}"


def choose_compute(config: RunConfig, report: Report, processor: Processor | None = None) -> Compute:
    """Resolve every `auto`, and apply the thread count and determinism that were asked for.

    Args:
        config: what was asked for.
        report: takes lines for the user.
        processor: what the CPU is used as; None: the best it is.

    Raises:
        DeviceError: what was asked for by name is not there.
    """
    processor = processor or supported_processors()[0]
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it from there only
        torch.use_deterministic_algorithms(True)
    device = choose_device(config.device)
    fast = _fast_dtype(device, processor)
    dtype = _choose_dtype(config.dtype, device, fast)
    if device.type == "cpu" and dtype != torch.float32 and dtype != fast:
        name = str(dtype).removeprefix("torch.")
        report(f"{name} is far slower than float32 here: this processor ({processor.name}) has no instructions for it")
    return Compute(device, dtype, choose_compile(config.compile, device, report, processor), fast)


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto`: CUDA, then MPS, then CPU.

    Raises:
        DeviceError: this torch sees no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise DeviceError(f"device {name}: expected auto, cpu, cuda, cuda:N or mps")
    device = torch.device(name)
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= there[device.type]:
        count = f"{there['cuda']} CUDA devices" if device.type == "cuda" else "no MPS device"
        raise DeviceError(f"device {name}: torch {torch.__version__} sees {count}; use device auto or cpu")
    return device


def _fast_dtype(device: torch.device, processor: Processor) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return processor.matmul_dtype if device.type == "cpu" else torch.float32


def _choose_dtype(name: str, device: torch.device, fast: torch.dtype) -> torch.dtype:
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    return torch.float16 if device.type == "cuda" and fast == torch.float32 else fast


def choose_compile(
    choice: str | bool, device: torch.device, report: Report, processor: Processor | None = None
) -> bool:
    """Return whether to compile; looking for a compiler imports torch's, which takes a second.

    On a CPU without instructions for bfloat16 `auto` is no: compiled blocks were no faster than eager ones there, and
    several times slower on a busy machine.

    Raises:
        DeviceError: `choice` is True, and there is no compiler.
    """
    processor = processor or supported_processors()[0]
    if choice is False or (choice == "auto" and device.type == "cpu" and processor.matmul_dtype == torch.float32):
        return False
    reason = why_not_compile(device)
    if reason is None:
        return True
    if choice is True:
        raise DeviceError(f"run.compile is true, but {reason}; set run.compile=auto or false")
    report(f"not compiling: {reason}")
    return False


def why_not_compile(device: torch.device) -> str | None:
    """Why torch.compile cannot work here; None where it can."""
    if device.type == "mps":
        return "torch.compile is not used on MPS"
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "triton is not installed"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError, RuntimeError):
        return "no C++ compiler was found"
    return None


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the floating-point type with most digits: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


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


def measure_matmul_rate(
    device: torch.device, dtype: torch.dtype, size: int | None = None, repeats: int = 3, seconds: float = 0.5
) -> float:
    """Measure the FLOP/s of a square matmul, the best of a few: what utilisation is measured against.

    Args:
        device: to measure.
        dtype: of the factors.
        size: rows and columns; None: 8192 on CUDA, else 2048. Fewer where a matmul of so many would take longer than
            `seconds`, as in a type that the processor has no instructions for.
        repeats: of which the best counts.
        seconds: of one matmul, at most.
    """
    size = size or (8192 if device.type == "cuda" else 2048)
    tried = min(size, 128)
    while tried < size and 64 * _time_matmul(device, dtype, tried, repeats=1) < seconds:
        tried = min(4 * tried, size)
    return 2 * tried**3 / _time_matmul(device, dtype, tried, repeats)


def _time_matmul(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """Return the seconds of the best of some square matmuls, after one that may also pay for initialisation."""
    a = torch.randn(size, size, device=device, generator=torch.Generator(device).manual_seed(0)).to(dtype)
    best = math.inf
    for _ in range(repeats + 1):
        _synchronize(device)
        start = time.perf_counter()
        torch.mm(a, a)
        _synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def measure_bandwidth(device: torch.device, nbytes: int, seconds: float = 0.3) -> float:
    """Bytes/s of a matrix-vector product with a float32 matrix of `nbytes`, the best of many in that time.

    That is how decoding reads the weights. A small matrix stays in the processor's cache, as the weights
    of a small model do, so the size is to be theirs. Other work on the machine can spoil a single try.
    """
    width = 1024
    rows = max(1, nbytes // (width * torch.float32.itemsize))
    matrix = torch.ones(rows, width, device=device)  # zeros may be pages that are not there
    vector = torch.ones(width, device=device)
    best, end = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < end:
        _synchronize(device)
        start = time.perf_counter()
        torch.mv(matrix, vector)
        _synchronize(device)
        best = max(best, matrix.nbytes / (time.perf_counter() - start))
    return best


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this process has held: on the CUDA device, else resident."""
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
