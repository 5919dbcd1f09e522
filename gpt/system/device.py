"""How a run computes: device, dtype, compiler, threads, memory allocator."""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gpt.system.environment import DEVICE_PATTERN, Launch, no_device
from gpt.system.errors import DeviceError
from gpt.system.processor import Processor, supported_processors
from gpt.system.progress import Report

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, from its malloc.h."""
PROCESS = os.getpid()
"""PID at import, to detect a fork."""


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Compute:
    """The device and dtype of a run."""

    device: torch.device
    dtype: torch.dtype  # of matmuls under autocast; float32 means no autocast
    fast_dtype: torch.dtype = torch.float32  # of the device's fastest matmuls, for those that need little precision

    def autocast(self) -> torch.autocast:
        """Return a context in which matmuls run in `dtype`."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    @property
    def uses_tf32(self) -> bool:
        """Return whether float32 training has TF32 matmuls: on a CUDA device with instructions for it."""
        return (self.device.type, self.dtype, self.fast_dtype) == ("cuda", torch.float32, torch.bfloat16)

    @contextmanager
    def allow_tf32(self) -> Iterator[None]:
        """Within, matmuls of forward and backward passes run in TF32, see `uses_tf32`.

        The setting is the process's: it is restored, and one that the user made stays.
        """
        if not (self.uses_tf32 and _is_default_precision()):
            yield
            return
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision("highest")

    def __str__(self) -> str:
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        name = str(self.dtype).removeprefix("torch.")
        tf32 = " (TF32 matmuls)" if self.uses_tf32 and _is_default_precision() else ""
        return f"{self.device}{threads}, {name}{tf32}"


def use_threads(threads: int | None, launch: Launch) -> None:
    """Set torch's number of threads; None: the processes of a machine share its cores."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif launch.local_size > 1:
        # torchrun sets OMP_NUM_THREADS to 1
        torch.set_num_threads(max(1, _usable_cores() // launch.local_size))


def choose_compute(
    name: str,
    dtype: str,
    report: Report,
    processor: Processor | None = None,
    launch: Launch = Launch(),  # noqa: B008  # frozen
) -> Compute:
    """Return a device by its name, and a dtype: `auto` or a name; each process of a launch has a CUDA device."""
    processor = processor or supported_processors()[0]
    device = choose_device(name if launch.size == 1 else _device_of_rank(name, launch))
    if launch.size > 1 and device.type == "cuda":
        torch.cuda.set_device(device)
    fast = _fast_dtype(device, processor)
    auto = torch.float16 if device.type == "cuda" and fast == torch.float32 else fast
    chosen: torch.dtype = auto if dtype == "auto" else getattr(torch, dtype)
    if device.type == "cpu" and chosen not in (torch.float32, fast):
        report(f"{dtype} is slower than float32 on this processor ({processor.name})")
    return Compute(device, chosen, fast)


def choose_device(name: str) -> torch.device:
    """Return the device with a given name, which is there; `auto`: CUDA, then MPS, then CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise DeviceError(f"device {name}: {no_device(name)}")
    device = torch.device(name)
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= there[device.type]:
        count = f"{there['cuda']} CUDA devices" if device.type == "cuda" else "no MPS device"
        raise DeviceError(f"device {name}: torch {torch.__version__} sees {count}; use device auto or cpu")
    if device.type == "cuda":
        _require_kernels(device)
    return device


def _require_kernels(device: torch.device) -> None:
    """Raise DeviceError unless this build of torch has kernels for a CUDA device, exact ones or PTX."""
    major, minor = torch.cuda.get_device_capability(device)
    built = torch.cuda.get_arch_list()
    # those for AMD have other names
    if not any(name.startswith(("sm_", "compute_")) for name in built):
        return
    for name in built:
        kind, _, number = name.partition("_")
        version = int(number.rstrip("af"))
        if (kind == "sm" and version // 10 == major) or (kind == "compute" and version <= 10 * major + minor):
            return
    raise DeviceError(
        f"device {device}: torch {torch.__version__} is built for {', '.join(built)}, and "
        f"{torch.cuda.get_device_name(device)} is sm_{major}{minor}; use device cpu, or a torch built for it"
    )


def _device_of_rank(name: str, launch: Launch) -> str:
    """Return the device of one of several processes: `cuda` is the one with its local rank."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"run.device is {name}, but each of {launch.size} processes needs its own; use cuda or cpu")
    is_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return f"cuda:{launch.local_rank}" if is_cuda else "cpu"


def _is_default_precision() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # it was set by `torch.backends.cuda.matmul.fp32_precision`, which does not mix with this
        return False


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fast_dtype(device: torch.device, processor: Processor) -> torch.dtype:
    if device.type == "cuda":
        # torch asks the current device
        with torch.cuda.device(device):
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return processor.matmul_dtype if device.type == "cpu" else torch.float32


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated; None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = []
    with suppress(OSError, ValueError):  # the container's limit, if any
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    with suppress(OSError):  # Linux only
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        sizes = dict(re.findall(r"^(MemAvailable|SwapFree):\s*(\d+) kB$", meminfo, re.MULTILINE))
        limits.append(1024 * sum(map(int, sizes.values())))
    return min(limits, default=None)


def require_memory(needed: int, what: str, remedy: str, device: torch.device) -> None:
    """Raise DeviceError unless `needed` bytes can be allocated; the message says what needs them, and what to lower."""
    available = available_bytes(device)
    if available is not None and needed > available:
        needs, has = (f"{size / 2**30:,.1f} GiB" for size in (needed, available))
        raise DeviceError(f"{what} needs at least {needs} of memory, and {device} has {has} available; lower {remedy}")


def require_own_threads(threads: int, remedy: str) -> None:
    """Raise DeviceError after a fork if several threads would compute: torch's pool does not survive it.

    A computation would wait for ever. `remedy` says how to have one thread.
    """
    if os.getpid() != PROCESS and threads > 1:
        raise DeviceError(
            f"this process was forked, and torch's threads do not survive that: {remedy}, or start processes with the "
            "spawn method"
        )


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for later tensors.

    A training step allocates the same tensors again and again, as does every batch its caches. By default
    glibc returns large blocks to the system, which clears every page anew: up to a quarter of a step's time.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        # not glibc
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """Move ids or places; from the CPU to a CUDA device through pinned memory, so that the copy is asynchronous."""
    pinned = device.type == "cuda" and ids.device.type == "cpu"
    return (ids.contiguous().pin_memory() if pinned else ids).to(device, non_blocking=pinned)


class _Uninitialized(TorchFunctionMode):
    """Leaves tensors as they are where `torch.nn.init` would fill them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def meta_device() -> Iterator[None]:
    """Create modules on the meta device, with tensors that nothing fills.

    Random numbers on that device would import torch's compiler, which takes half a second.
    """
    with torch.device("meta"), _Uninitialized():
        yield
