"""What a measurement was made on: processor, versions, and how busy the machine was."""

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gpt.processor import GENERIC, supported_processors
from gpt.settings import read_settings

VECTOR_FLAGS = ("avx", "amx", "asimd", "sve")


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """Date, machine and versions, for the JSON line; `device` is what computes."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "class": processor_class(device, read_settings().processor),
            **read_cpuinfo(_read(Path("/proc/cpuinfo"))),
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


def processor_class(device: str, acts_as: str | None) -> str:
    """The class that a figure belongs to: one of `gpt.processor`, `CUDA` and the name of the card, or `other`.

    Args:
        device: cpu, cuda, cuda:N or mps.
        acts_as: class that kernels were told to use instead of the processor's own, or None.
    """
    if device.startswith("cuda"):
        return f"CUDA {torch.cuda.get_device_name(device)}"
    own = supported_processors()[0] if device == "cpu" else GENERIC
    name = "other" if own is GENERIC else own.name
    return name if acts_as in (None, own.name) else f"{name} as {acts_as}"


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
