"""Processor classes: the instruction sets that each needs, and the dtype of its fastest matmuls."""

import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.system.errors import DeviceError


@dataclass(frozen=True)
class Processor:
    """A class of processors with the same instructions.

    A machine belongs to the class if it has all its instruction sets; code that is compiled for the
    class uses no others. The name is shown to users, and is a value of `GPT_PROCESSOR`.

    Training multiplies matrices of bfloat16 only if there are instructions for that: without them
    torch computes element by element, up to 150 times slower than in float32.
    """

    name: str
    instructions: tuple[str, ...] = ()  # sets, as GCC and Clang name them
    matmul_dtype: torch.dtype = torch.float32
    macros: tuple[str, ...] = ()  # flags that tell the sources more than compilers do

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """Return the compiler's options by which code is compiled for the class."""
        flags = []
        if platform.machine() in ("x86_64", "AMD64") and self.name != "NEON":
            # Begin with the oldest x86-64, since the compilers of some systems use newer
            # instructions by default. NEON is not for x86-64.
            flags.append("-march=x86-64")
        flags.extend(f"-m{name}" for name in self.instructions)
        flags.extend(self.macros)
        if self.matmul_dtype == torch.bfloat16:
            flags.append("-DGPT_BFLOAT16")
        return tuple(flags)


_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_BF16 = (*_AVX512, "avx512bf16")
_AMX = (*_AVX512_BF16, "amx-tile", "amx-bf16", "amx-int8")

TILES = "-DGPT_TILES"
"""Macro by which sources multiply by the AMX tile unit."""
AMX = Processor("AMX", _AMX, torch.bfloat16, (TILES,))
AVX512_BF16 = Processor("AVX-512 bf16", _AVX512_BF16, torch.bfloat16)
AVX512 = Processor("AVX-512", _AVX512)
AVX2 = Processor("AVX2", _AVX2)
NEON = Processor("NEON")
GENERIC = Processor("generic", macros=("-DGPT_LANES=4",))

PROCESSORS = {p.name: p for p in (AMX, AVX512_BF16, AVX512, AVX2, NEON, GENERIC)}
"""All classes by name, the fastest first on AMD's processors.

A processor of one class also belongs to the later classes of its family.
"""


def supported_processors(best: str | None = None) -> list[Processor]:
    """Return the classes that this machine's processor belongs to, the fastest first.

    `GENERIC` is always the last.

    Args:
        best: the name of a class; faster ones are left out, to test what other processors do.
    """
    instructions = _instructions()
    supported = []
    for processor in PROCESSORS.values():
        # NEON and GENERIC state no instructions; they are added below.
        if processor.instructions and instructions.issuperset(processor.instructions):
            supported.append(processor)
    if AMX in supported:
        # Linux grants the tile unit to a process that asks, as `_init_amx` does. On other systems
        # the package has not been tested with it.
        is_granted = sys.platform == "linux" and torch.cpu._init_amx()
        if not is_granted:
            supported.remove(AMX)
    if AVX512_BF16 in supported and _is_made_by_intel():
        # AMD's processors multiply bfloat16 twice as fast as float32, Intel's do not.
        supported.remove(AVX512_BF16)
        supported.insert(supported.index(AVX512) + 1, AVX512_BF16)
    if platform.machine() in ("aarch64", "arm64", "ARM64"):
        supported.append(NEON)
    supported.append(GENERIC)
    if best is None:
        return supported
    names = [processor.name for processor in supported]
    if best not in PROCESSORS:
        raise DeviceError(f"processor {best!r}: expected one of {', '.join(PROCESSORS)}")
    if best not in names:
        raise DeviceError(
            f"this processor is not of class {best}; it can act as {', '.join(names)}"
        )
    return supported[names.index(best) :]


def _is_made_by_intel() -> bool:
    cpuinfo = Path("/proc/cpuinfo")  # on Linux
    if cpuinfo.is_file():
        return "GenuineIntel" in cpuinfo.read_text(encoding="utf-8")
    return "GenuineIntel" in platform.processor()


def _instructions() -> set[str]:
    """Return the instruction sets that processor and system support, as compilers name them."""
    cpuinfo = Path("/proc/cpuinfo")
    found: set[str] = set()
    if hasattr(torch.cpu, "get_capabilities"):  # since torch 2.11
        capabilities = torch.cpu.get_capabilities()
        # Some values are not flags, such as the sizes of caches and the name.
        found = {name for name, value in capabilities.items() if value is True}
    elif cpuinfo.is_file():
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
        if flags:
            found = set(flags[1].split())
    # Torch and Linux write avx512_bf16 and amx_tile; compilers write avx512bf16 and amx-tile.
    spelled = {name.replace("avx512_", "avx512").replace("fma3", "fma") for name in found}
    return spelled | {name.replace("_", "-") for name in spelled}
