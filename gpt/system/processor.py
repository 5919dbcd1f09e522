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
    """Processors with the same instructions; the name is shown to users, and a value of `GPT_PROCESSOR`.

    Training multiplies matrices of bfloat16 if there are instructions for that; without them torch computes element by
    element, up to 150 times slower than in float32.

    Compiled code uses its instruction sets and no others; a machine belongs to the class if it has them all.
    """

    name: str
    instructions: tuple[str, ...] = ()  # sets, as GCC and Clang name them
    matmul_dtype: torch.dtype = torch.float32
    macros: tuple[str, ...] = ()  # flags that tell the sources more than compilers do

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        # named for every x86 processor, because some systems' compilers take newer ones for granted
        base = ("-march=x86-64",) if platform.machine() in ("x86_64", "AMD64") and self.name != "NEON" else ()
        bfloat16 = ("-DGPT_BFLOAT16",) if self.matmul_dtype == torch.bfloat16 else ()
        return (*base, *(f"-m{name}" for name in self.instructions), *self.macros, *bfloat16)


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
"""All classes by name, in the order of AMD's; a processor of one class also belongs to those of its family below it."""


def supported_processors(best: str | None = None) -> list[Processor]:
    """Return the classes of this machine's processor, from the one named `best` on; None: from the best on.

    `GENERIC` is always the last. Other names are for testing what other processors do.
    """
    instructions = _instructions()
    supported = [p for p in PROCESSORS.values() if p.instructions and instructions.issuperset(p.instructions)]
    # Linux grants tiles to processes that ask; elsewhere nobody has tried
    if AMX in supported and not (sys.platform == "linux" and torch.cpu._init_amx()):
        supported.remove(AMX)
    if AVX512_BF16 in supported and _is_of_intel():  # AMD's multiply bfloat16 twice as fast as float32, Intel's do not
        supported.remove(AVX512_BF16)
        supported.insert(supported.index(AVX512) + 1, AVX512_BF16)
    supported += [NEON, GENERIC] if platform.machine() in ("aarch64", "arm64", "ARM64") else [GENERIC]
    if best is None:
        return supported
    names = [processor.name for processor in supported]
    if best not in PROCESSORS:
        raise DeviceError(f"processor {best!r}: expected one of {', '.join(PROCESSORS)}")
    if best not in names:
        raise DeviceError(f"this processor is not of class {best}; it can act as {', '.join(names)}")
    return supported[names.index(best) :]


def _is_of_intel() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return "GenuineIntel" in (cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else platform.processor())


def _instructions() -> set[str]:
    """Return the instruction sets that the processor has and the system supports, as compilers name them."""
    if hasattr(torch.cpu, "get_capabilities"):  # since torch 2.11
        found = {name for name, is_there in torch.cpu.get_capabilities().items() if is_there is True}
    else:
        cpuinfo = Path("/proc/cpuinfo")
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else None
        found = set(flags[1].split()) if flags else set()
    spelled = {name.replace("avx512_", "avx512").replace("fma3", "fma") for name in found}
    return spelled | {name.replace("_", "-") for name in spelled}
