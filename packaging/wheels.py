"""`make wheels`: a wheel per platform with the kernels of all its processor classes, so that users
need no compiler.

Zig is the compiler: it brings the C and C++ libraries of every platform. A wheel holds the sources
too; what they are compiled for is chosen at run time, and whoever edits them compiles them again.

Each wheel is checked by the tools of its platform (`checks.py`). Recorded calls of the kernels are
repeated with its libraries wherever this machine can run them (`replaying.py`): natively, for
Windows in Wine, for aarch64 in QEMU. Nothing of it has run on macOS, on a real Windows or on a real
aarch64.
"""

import argparse
import hashlib
import importlib.metadata
import os
import platform as machine
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from checks import check_wheel
from platforms import PLATFORMS, ROOT, SOURCES, ZIG, Platform
from replaying import replay_wheel

from gpt.native.build import FLAGS, system_flags
from gpt.system.processor import Processor

LINK = ("-O3", "-shared", "-s")
"""Without the flags of the class: Zig would compile its C++ library anew for each."""


def compiled_library(platform: Platform, source: str, processor: Processor) -> Path:
    """Return the library of a source for a processor class of a platform, compiled once, in
    `build/wheels`.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    own = [flag.replace("-march=x86-64", "-march=x86_64") for flag in processor.compiler_flags]
    system = system_flags(platform.system, is_zig=True)
    flags = [*(flag for flag in FLAGS if flag != "-shared"), *system, *own, *SOURCES[source]]
    made_by = hashlib.sha256(
        " ".join([importlib.metadata.version("ziglang"), *flags, *LINK]).encode()
    ).hexdigest()[:8]
    folder = ROOT / "build/wheels" / f"{platform.target}-{made_by}"
    cached = platform.library(folder, source, processor)
    if library := cached.find():
        return library
    with tempfile.TemporaryDirectory() as scratch:
        compiled, linked = Path(scratch, "object.o"), Path(scratch, f"library{platform.suffix}")
        path = Path("gpt/native/src", source)
        zig = [*ZIG, "-target", platform.target]
        subprocess.run([*zig, *flags, "-c", path, "-o", compiled], cwd=ROOT, check=True)
        subprocess.run([*zig, *LINK, compiled, "-o", linked], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        return cached.store(linked)


def build_wheel(platform: Platform, output: Path) -> Path:
    """Build the wheel of a platform from the tracked files, and return it; the same files make the
    same wheel.

    Raises:
        subprocess.CalledProcessError: git, the compiler or pip fails.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        libraries = list(
            pool.map(
                lambda job: compiled_library(platform, *job), product(SOURCES, platform.processors)
            )
        )
    with tempfile.TemporaryDirectory() as scratch:
        tree, made = Path(scratch, "tree"), Path(scratch, "made")
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for name in filter(None, names.split("\0")):
            if name.startswith(("gpt/", "configs/")) or "/" not in name:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, tree / name)
        (tree / "gpt/native/prebuilt").mkdir()
        for library in libraries:
            shutil.copy(library, tree / "gpt/native/prebuilt")
            print(f"  {library.name}: {library.stat().st_size / 1e3:,.0f} kB")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        tag = f"--config-settings=--build-option=--plat-name={platform.tag}"
        # 1980, where the times of ZIP files begin
        dated = {
            **os.environ,
            "SOURCE_DATE_EPOCH": "315619200",
        }
        subprocess.run([*pip, tag, "--wheel-dir", made, tree], env=dated, check=True)
        (wheel,) = made.glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, output / wheel.name))


def main() -> int:
    """Build and check wheels; return 1 if one is not fit to be published."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "platforms",
        nargs="*",
        default=list(PLATFORMS),
        help=f"{', '.join(PLATFORMS)}; all by default",
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder of the wheels (dist)"
    )
    parser.add_argument(
        "--unchecked", action="store_true", help="only build, without the tools that check"
    )
    options = parser.parse_args()
    if unknown := set(options.platforms) - set(PLATFORMS):
        parser.error(f"unknown platform {unknown.pop()!r}; expected {', '.join(PLATFORMS)}")
    if machine.machine() != "x86_64":
        # see gpt/system/processor.py
        parser.error(f"wheels are built on x86-64, and this is {machine.machine()}")
    problems = []
    for name in options.platforms:
        platform, start = PLATFORMS[name], time.monotonic()
        print(f"{name}:", flush=True)
        wheel = build_wheel(platform, options.output)
        print(
            f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB in {time.monotonic() - start:.0f} s",
            flush=True,
        )
        found = (
            []
            if options.unchecked
            else [*check_wheel(wheel, platform.tag), *replay_wheel(wheel, platform)]
        )
        problems += [f"{wheel.name}: {problem}" for problem in found]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
