"""The platforms that there are wheels for, and the libraries of each."""

import sys
from dataclasses import dataclass
from pathlib import Path

from gpt.native.build import CachedLibrary, prebuilt_key
from gpt.native.decoding.decoder import FLAGS as ENGINE_FLAGS
from gpt.system.processor import AMX, AVX2, AVX512, AVX512_BF16, GENERIC, NEON, Processor

ROOT = Path(__file__).parent.parent
SOURCES = {"decoding/engine.cpp": ENGINE_FLAGS, "training/training.cpp": ()}
"""Sources of the libraries, with the compiler flags of each."""
ZIG = (sys.executable, "-m", "ziglang", "c++")


@dataclass(frozen=True)
class Platform:
    """A platform by its name in a wheel, in Zig, and in `sys.platform`, and the processor classes
    found there.
    """

    tag: str
    target: str
    system: str
    processors: tuple[Processor, ...]

    def library(self, folder: Path, source: str, processor: Processor) -> CachedLibrary:
        """Return the place in a folder of the library of one of `SOURCES` for a processor class."""
        return CachedLibrary(folder, prebuilt_key(source, processor, SOURCES[source]), self.suffix)

    @property
    def suffix(self) -> str:
        return ".dll" if self.system == "win32" else ".so"


PLATFORMS = {
    "linux-x86_64": Platform(
        "manylinux_2_17_x86_64",
        "x86_64-linux-gnu.2.17",
        "linux",
        (AMX, AVX512_BF16, AVX512, AVX2, GENERIC),
    ),
    "linux-aarch64": Platform("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "linux", (NEON,)),
    "macos-arm64": Platform("macosx_11_0_arm64", "aarch64-macos.11.0", "darwin", (NEON,)),
    "windows-x64": Platform(
        "win_amd64", "x86_64-windows-gnu", "win32", (AVX512_BF16, AVX512, AVX2, GENERIC)
    ),
}
