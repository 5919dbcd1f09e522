"""What a measurement was made on: processor, versions, and how busy the machine was."""

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

VECTOR_FLAGS = ("avx", "amx", "asimd", "sve")

CLASSES = {
    "AMX": {"amx_tile", "amx_bf16"},
    "AVX-512 bf16": {"avx512f", "avx512_bf16"},
    "AVX-512": {"avx512f"},
    "AVX2": {"avx2"},
    "NEON": {"asimd"},
}
"""Classes of processors, the best first, and the features that Linux lists for one."""


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Date, machine and versions, for the JSON line; `device` is what computes."""
    processor = read_cpuinfo(_read(Path("/proc/cpuinfo")))
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "class": processor_class(device, processor["flags"]),
            **processor,
            "cores": usable_cores(),
            "system": f"{platform.system()} {platform.release()}",
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: package_version(name) for name in ("torch", "transformers", "accelerate", "gpt")},
        },
    }


def read_cpuinfo(text: str) -> dict[str, Any]:
    """Name of the processor and its vector and matrix extensions, from Linux's /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "flags": sorted(flag for flag in flags if flag.startswith(VECTOR_FLAGS)),
    }


def processor_class(device: str, flags: Sequence[str]) -> str:
    """The class that a figure belongs to: a name of `CLASSES`, `CUDA` and the name of the card, or `other`.

    Args:
        device: cpu, cuda, cuda:N or mps.
        flags: features of the CPU by Linux's names; empty where the system has no such list.
    """
    import torch

    if device.startswith("cuda"):
        return f"CUDA {torch.cuda.get_device_name(device)}"
    if device != "cpu":
        return "other"
    if not flags:
        by_name = {"AVX512": "avx512f", "AVX2": "avx2"}
        is_arm = platform.machine().lower() in ("arm64", "aarch64")
        flags = ["asimd" if is_arm else by_name.get(torch.backends.cpu.get_cpu_capability(), "")]
    return next((name for name, needed in CLASSES.items() if needed <= set(flags)), "other")


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(name: str) -> str | None:
    """None: it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # not on Linux
        return ""
