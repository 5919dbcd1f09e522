"""Processor classes: the dtype of their fastest matmuls, and the compiler flags for their instructions."""

import platform
import sys
from dataclasses import dataclass

import torch

from gpt.errors import DeviceError


@dataclass(frozen=True)
class Processor:
    """Processors with the same instructions; the name is shown to users, and a value of `GPT_PROCESSOR`.

    The flags make GCC and Clang use these instructions and no others. Training multiplies matrices of bfloat16 if there
    are instructions for that; without them torch computes element by element, up to 150 times slower than in float32.
    """

    name: str
    flags: tuple[str, ...]
    matmul_dtype: torch.dtype = torch.float32

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """Return the flags, with the macro by which sources know that there are bfloat16 matmuls."""
        return (*self.flags, "-DGPT_BFLOAT16") if self.matmul_dtype == torch.bfloat16 else self.flags


# named for every x86 processor, because some systems' compilers take newer ones for granted
_BASE = ("-march=x86-64",) if platform.machine() in ("x86_64", "AMD64") else ()
_AVX2 = (*_BASE, "-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_AVX512_BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
_AMX = (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8")

AMX = Processor("AMX", _AMX, torch.bfloat16)
AVX512_BF16 = Processor("AVX-512 bf16", _AVX512_BF16, torch.bfloat16)
AVX512 = Processor("AVX-512", _AVX512)
AVX2 = Processor("AVX2", _AVX2)
NEON = Processor("NEON", ())
GENERIC = Processor("generic", (*_BASE, "-DGPT_LANES=4"))

PROCESSORS = {p.name: p for p in (AMX, AVX512_BF16, AVX512, AVX2, NEON, GENERIC)}
"""All classes by name, the fastest first; a processor of one class also belongs to those of its family below it."""


def supported_processors(best: str | None = None) -> list[Processor]:
    """Return the classes of this machine's processor, from the one named `best` on; None: from the best on.

    `GENERIC` is always the last. Other names are for testing what other processors do.

    Raises:
        DeviceError: there is no such class, or this processor does not belong to it.
    """
    has = {
        # torch says yes wherever it need not ask the system; the kernels ask Linux
        AMX: sys.platform == "linux" and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx(),
        AVX512_BF16: torch.cpu._is_avx512_bf16_supported(),
        AVX512: torch.cpu._is_avx512_supported(),
        AVX2: torch.cpu._is_avx2_supported(),
        NEON: platform.machine() in ("aarch64", "arm64", "ARM64"),
        GENERIC: True,
    }
    supported = [processor for processor, is_there in has.items() if is_there]
    if best is None:
        return supported
    names = [processor.name for processor in supported]
    if best not in PROCESSORS:
        raise DeviceError(f"processor {best!r}: expected one of {', '.join(PROCESSORS)}")
    if best not in names:
        raise DeviceError(f"this processor is not of class {best}; it can act as {', '.join(names)}")
    return supported[names.index(best) :]
