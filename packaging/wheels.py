"""`make wheels`: a wheel per platform with the kernels of all its processor classes, so that users need no compiler.

Zig is the compiler: it brings the C and C++ libraries of every platform. A wheel holds the sources too; what they are
compiled for is chosen at run time, and whoever edits them compiles them again.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpt.kernels.build import prebuilt_key
from gpt.kernels.compiler import FLAGS, system_flags
from gpt.kernels.decoding.engine import FLAGS as ENGINE_FLAGS
from gpt.kernels.library_cache import CachedLibrary
from gpt.processor import AMX, AVX2, AVX512, AVX512_BF16, GENERIC, NEON, Processor

ROOT = Path(__file__).parent.parent
SOURCES = {"decoding/engine.cpp": ENGINE_FLAGS, "training/training.cpp": ()}
"""Sources of the libraries, with the compiler flags of each."""
MAX_BYTES = 8_000_000


@dataclass(frozen=True)
class Platform:
    """A platform by its name in a wheel, in Zig, and in `sys.platform`, and the processor classes found there."""

    tag: str
    target: str
    system: str
    processors: tuple[Processor, ...]

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
    "windows-x64": Platform("win_amd64", "x86_64-windows-gnu", "win32", (AVX512_BF16, AVX512, AVX2, GENERIC)),
}


def compile_library(platform: Platform, source: str, processor: Processor, folder: Path) -> Path:
    """Compile a source for a processor class of a platform into a folder, and return the library.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", platform.target]
    own = [flag.replace("-march=x86-64", "-march=x86_64") for flag in processor.compiler_flags]
    with tempfile.TemporaryDirectory() as scratch:
        compiled, linked = Path(scratch, "object.o"), Path(scratch, f"library{platform.suffix}")
        system = system_flags(platform.system, is_zig=True)
        flags = [flag for flag in FLAGS if flag != "-shared"]
        subprocess.run(
            [*zig, *flags, *system, *own, *SOURCES[source], "-c", ROOT / "gpt/kernels/src" / source, "-o", compiled],
            check=True,
        )
        # linked without the flags of the class: Zig would compile its C++ library anew for each
        subprocess.run([*zig, "-O3", "-shared", "-s", compiled, "-o", linked], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        key = prebuilt_key(source, processor, SOURCES[source])
        return CachedLibrary(folder, key, platform.suffix).store(linked)


def build_wheel(platform: Platform, output: Path) -> Path:
    """Build the wheel of a platform from the tracked files, and return it.

    Raises:
        subprocess.CalledProcessError: git, the compiler or pip fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if name.startswith(("gpt/", "configs/")) or "/" not in name:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        for source in SOURCES:
            for processor in platform.processors:
                library = compile_library(platform, source, processor, tree / "gpt/kernels/prebuilt")
                print(f"  {library.name}: {library.stat().st_size / 1e3:,.0f} kB")
        made = Path(scratch, "made")
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        tag = f"--config-settings=--build-option=--plat-name={platform.tag}"
        subprocess.run([*pip, tag, "--wheel-dir", made, tree], check=True)
        (wheel,) = made.glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, output / wheel.name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platforms", nargs="*", default=list(PLATFORMS), help=f"{', '.join(PLATFORMS)}; all by default")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheels (dist)")
    options = parser.parse_args()
    if unknown := set(options.platforms) - set(PLATFORMS):
        parser.error(f"unknown platform {unknown.pop()!r}; expected {', '.join(PLATFORMS)}")
    for name in options.platforms:
        print(f"{name}:")
        wheel = build_wheel(PLATFORMS[name], options.output)
        size = wheel.stat().st_size
        print(f"{wheel}: {size / 1e6:.1f} MB")
        if size > MAX_BYTES:
            print(f"{wheel.name} has more than {MAX_BYTES / 1e6:.0f} MB", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
