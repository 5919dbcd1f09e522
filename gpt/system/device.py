"""How a run computes: its device, dtype, threads and memory."""

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

M_TRIM_THRESHOLD = -1
"""Parameter of glibc's mallopt, from its malloc.h: free memory above it returns to the system."""
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt, from its malloc.h: larger blocks are mapped one by one."""
PROCESS = os.getpid()
"""The process that imported this module: after a fork, `os.getpid()` is another one."""


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Compute:
    """The device and dtype of a run."""

    device: torch.device
    dtype: torch.dtype  # of matmuls under autocast; float32 means no autocast
    # The type of the device's fastest matmuls, for work that needs little precision.
    fast_dtype: torch.dtype = torch.float32

    def autocast(self) -> torch.autocast:
        """Return a context in which matmuls run in `dtype`."""
        return torch.autocast(
            self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32
        )

    @property
    def uses_tf32(self) -> bool:
        """Whether float32 training has TF32 matmuls.

        CUDA devices have instructions for TF32 if they have those for bfloat16: both came together.
        """
        is_float32_on_cuda = self.device.type == "cuda" and self.dtype == torch.float32
        return is_float32_on_cuda and self.fast_dtype == torch.bfloat16

    @contextmanager
    def allow_tf32(self) -> Iterator[None]:
        """Let float32 matmuls inside this context run in TF32, if `uses_tf32`.

        The setting belongs to the process: it is restored afterwards, and a setting that the user
        made is left alone.
        """
        if not (self.uses_tf32 and _is_default_precision()):
            yield
            return
        torch.set_float32_matmul_precision("high")  # PyTorch's name for TF32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision("highest")

    def __str__(self) -> str:
        threads = f", {torch.get_num_threads()} threads" if self.device.type == "cpu" else ""
        name = str(self.dtype).removeprefix("torch.")
        tf32 = " (TF32 matmuls)" if self.uses_tf32 and _is_default_precision() else ""
        return f"{self.device}{threads}, {name}{tf32}"


def setup_process(threads: int | None, device: torch.device, launch: Launch) -> None:
    """Set up this process for training: torch's threads, its current device, memory that is kept.

    Nothing else of a training changes settings of the whole process for good, so that checks which
    come before can refuse a run and leave the process of their caller as it was.
    """
    use_threads(threads, launch)
    if launch.size > 1 and device.type == "cuda":
        # NCCL and DistributedDataParallel take the current device for that of this process.
        torch.cuda.set_device(device)
    keep_freed_memory()


def use_threads(threads: int | None, launch: Launch) -> None:
    """Set torch's number of threads; None means that a machine's processes share its cores."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif launch.local_size > 1:
        # torchrun sets OMP_NUM_THREADS to 1, which would leave most cores idle.
        torch.set_num_threads(max(1, _usable_cores() // launch.local_size))


def choose_compute(
    name: str,
    dtype: str,
    report: Report,
    processor: Processor | None = None,
    launch: Launch = Launch(),  # noqa: B008  # frozen
) -> Compute:
    """Choose the device and the dtype of a run. Nothing of the process is changed.

    Args:
        name: a device, or `auto`; `cuda` is a device of its own for each process of a launch.
        dtype: a type of torch by its name, or `auto`, which is the fastest one.
        processor: the class of processors for which the dtype is chosen; None: this machine's best.
    """
    processor = processor or supported_processors()[0]
    if launch.size > 1:
        name = _device_of_rank(name, launch)
    device = choose_device(name)
    fast_dtype = _fast_dtype(device, processor)
    chosen: torch.dtype
    if dtype != "auto":
        chosen = getattr(torch, dtype)
    elif device.type == "cuda" and fast_dtype == torch.float32:
        chosen = torch.float16  # CUDA devices before bfloat16 have fast matmuls of this type
    else:
        chosen = fast_dtype
    if device.type == "cpu" and chosen not in (torch.float32, fast_dtype):
        report(f"{dtype} is slower than float32 on this processor ({processor.name})")
    return Compute(device, chosen, fast_dtype)


def choose_device(name: str) -> torch.device:
    """Return the device with a given name, or for `auto` the best one: CUDA, then MPS, then CPU.

    Raises:
        DeviceError: there is no device of this name, or torch cannot use it here.
    """
    if name == "auto":
        name = _best_device()
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise DeviceError(f"device {name}: {no_device(name)}")
    device = torch.device(name)
    # How many devices of each type torch sees; `cuda` alone means the first one.
    counts = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= counts[device.type]:
        seen = f"{counts['cuda']} CUDA devices" if device.type == "cuda" else "no MPS device"
        raise DeviceError(
            f"device {name}: torch {torch.__version__} sees {seen}; use device auto or cpu"
        )
    if device.type == "cuda":
        _require_kernels(device)
    return device


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def _require_kernels(device: torch.device) -> None:
    """Raise DeviceError unless this build of torch has kernels that a CUDA device can run.

    A build lists machine code as `sm_80`, which runs on all devices of that major version, and PTX
    as `compute_80`, which is compiled at run time for any device at least so new.
    """
    major, minor = torch.cuda.get_device_capability(device)
    built = torch.cuda.get_arch_list()
    if not any(name.startswith(("sm_", "compute_")) for name in built):
        # This build of torch is for AMD's devices, which have other names.
        return
    for name in built:
        kind, _, number = name.partition("_")
        version = int(number.rstrip("af"))  # without the suffix of sm_90a or sm_100f
        if kind == "sm" and version // 10 == major:
            return
        if kind == "compute" and version <= 10 * major + minor:
            return
    raise DeviceError(
        f"device {device}: torch {torch.__version__} is built for {', '.join(built)}, and "
        f"{torch.cuda.get_device_name(device)} is sm_{major}{minor}; "
        "use device cpu, or a torch built for it"
    )


def _device_of_rank(name: str, launch: Launch) -> str:
    """Return the device of one of several processes: CUDA devices go by the local rank."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(
            f"run.device is {name}, but each of {launch.size} processes needs its own; "
            "use cuda or cpu"
        )
    is_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return f"cuda:{launch.local_rank}" if is_cuda else "cpu"


def _is_default_precision() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # The user set `torch.backends.cuda.matmul.fp32_precision`; torch refuses to mix the two.
        return False


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fast_dtype(device: torch.device, processor: Processor) -> torch.dtype:
    """Return the type of a device's fastest matmuls: bfloat16 if it has instructions for them."""
    if device.type == "cuda":
        # `is_bf16_supported` asks the current device.
        with torch.cuda.device(device):
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float32
    if device.type == "cpu":
        return processor.matmul_dtype
    return torch.float32


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated; None if the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Torch does not return freed memory to the device, and allocates from it first.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + unused
    limits = []
    # The limit of a container. Without a limit the file says "max", which `int` refuses.
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    # Only Linux has this file.
    with suppress(OSError):
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        sizes = dict(re.findall(r"^(MemAvailable|SwapFree):\s*(\d+) kB$", meminfo, re.MULTILINE))
        limits.append(1024 * sum(map(int, sizes.values())))
    return min(limits, default=None)


def require_memory(needed: int, what: str, remedy: str, device: torch.device) -> None:
    """Raise DeviceError unless some memory can be allocated.

    Args:
        needed: the number of bytes.
        what: what needs them, for the message.
        remedy: the setting that a user may lower, for the message.
    """
    available = available_bytes(device)
    if available is not None and needed > available:
        raise DeviceError(
            f"{what} needs at least {needed / 2**30:,.1f} GiB of memory, and "
            f"{device} has {available / 2**30:,.1f} GiB available; lower {remedy}"
        )


def require_own_threads(threads: int, remedy: str) -> None:
    """Raise DeviceError if this process was forked and several threads are to compute.

    Torch's threads do not survive a fork, so that a computation would wait for them forever.

    Args:
        remedy: how a user gets one thread, for the message.
    """
    if os.getpid() != PROCESS and threads > 1:
        raise DeviceError(
            f"this process was forked, and torch's threads do not survive that: {remedy}, "
            "or start processes with the spawn method"
        )


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for later tensors, in this process.

    Every training step allocates tensors of the same sizes, and so does every batch of requests. By
    default glibc returns large blocks to the system, which clears each page before it gives it out
    again: that takes up to a quarter of a step's time.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        # The C library is not glibc.
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)  # mallopt takes a C int, and this is the largest


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """Move ids or positions to a device.

    From the CPU to a CUDA device they go through pinned memory, without which the copy would wait
    for all that the device still computes.
    """
    if device.type == "cuda" and ids.device.type == "cpu":
        return ids.contiguous().pin_memory().to(device, non_blocking=True)
    return ids.to(device)


class _Uninitialized(TorchFunctionMode):
    """Leaves tensors as they are where `torch.nn.init` would fill them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, unless it initializes a tensor."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            # Functions of torch.nn.init fill their first argument, and return it.
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def meta_device() -> Iterator[None]:
    """Let modules inside this context be created on the meta device, where tensors take no memory.

    The functions of `torch.nn.init` do nothing there: random numbers on the meta device would
    import torch's compiler, which takes half a second.
    """
    with torch.device("meta"), _Uninitialized():
        yield
