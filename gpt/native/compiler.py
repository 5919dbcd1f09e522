"""The C++ compiler of this machine, and how to call it.

GCC and Clang are called alike. Without either, the package `ziglang` brings a Clang from the package index.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = ("clang++",) if sys.platform == "win32" else ("c++", "g++", "clang++")
"""GCC on Windows spills wide registers to a stack that is not aligned for them (bug 54412)."""
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-shared", "-fvisibility=hidden", "-Wno-psabi")
"""Flags of every library. Fuse multiplications and additions where possible: Clang's default differs from GCC's. Hide
all symbols but the interface: inline functions of two libraries, of different classes, would be merged."""


@dataclass(frozen=True)
class Compiler:
    """A compiler that runs: how to call it, and its own description; Zig spells base architectures in its own way."""

    command: tuple[str, ...]
    version: str
    is_zig: bool = False

    @property
    def name(self) -> str:
        return "zig" if self.is_zig else Path(self.command[0]).stem

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Return the command for a shared library, up to its source; `flags` are added to those of every library."""
        own = [flag.replace("-march=x86-64", "-march=x86_64") for flag in flags] if self.is_zig else flags
        return [*self.command, *FLAGS, *system_flags(sys.platform, self.is_zig), *own]


def system_flags(platform: str, is_zig: bool) -> tuple[str, ...]:
    if platform != "win32":
        return ("-fPIC", "-pthread")
    return () if is_zig else ("-static",)  # other compilers' own libraries are not where Windows looks for DLLs


def find_compilers() -> Iterator[Compiler]:
    """Yield the compilers of this machine, the preferred one first, each once."""
    different: dict[Path, str] = {}
    for path in filter(None, map(shutil.which, NAMES)):
        different.setdefault(Path(path).resolve(), path)
    yield from filter(None, map(_compiler_at, different.values()))
    if importlib.util.find_spec("ziglang") is not None:
        version = f"ziglang {importlib.metadata.version('ziglang')}"
        yield Compiler((sys.executable, "-m", "ziglang", "c++"), version, is_zig=True)


def find_compiler() -> Compiler | None:
    return next(find_compilers(), None)


def _compiler_at(path: str) -> Compiler | None:
    """Return the compiler at a path if it reports a version; the `c++` of macOS may only say where to get one."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return Compiler((path,), result.stdout) if result.returncode == 0 else None
