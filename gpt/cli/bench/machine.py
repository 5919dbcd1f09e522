"""What a measurement was made on: processor, versions, and how busy the machine was."""

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

VECTOR_FLAGS = ("avx", "amx", "asimd", "sve")


def describe_machine() -> dict[str, Any]:
    """Date, machine and versions, for the JSON line."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
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
