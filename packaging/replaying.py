"""Repeat recorded calls of the kernels with the libraries of a wheel, if this machine can run them
or emulate it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from itertools import product
from pathlib import Path

import torch
from platforms import ROOT, SOURCES, ZIG, Platform
from recording import record_decoding, record_training

from gpt.system.environment import read_settings
from gpt.system.processor import AMX, NEON, Processor, supported_processors

SOURCE, BUILD = Path(__file__).with_name("replay.cpp"), ROOT / "build/wheels"
ARM_ROOT = "/usr/aarch64-linux-gnu"
"""Where the C library for aarch64 is, of Debian's libc6-arm64-cross."""
WINE = "/usr/lib/wine/wine64"
"""Where Debian puts it, outside of the path."""


def replay_wheel(wheel: Path, platform: Platform) -> list[str]:
    """Repeat the calls with every library that can run here, print what was and was not run, and
    return what differs.

    Raises:
        subprocess.CalledProcessError: the program that repeats them cannot be compiled.
    """
    problems = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [
            *ZIG,
            "-target",
            platform.target,
            "-std=c++17",
            "-O3",
            "-s",
            str(SOURCE),
            "-o",
            str(folder / "replay.exe"),
        ]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        for processor, source in product(platform.processors, SOURCES):
            name = f"{source} for {processor.name}"
            library = platform.library(folder / "gpt/native/prebuilt", source, processor).find()
            if library is None:
                problems.append(f"it lacks {name}")
            elif reason := why_not_run(platform, processor):
                print(f"  {name}: not run, {reason}")
            else:
                shutil.copy(recorded(source, processor.matmul_dtype), folder / "recording")
                is_right, said = replay(platform, folder, library.relative_to(folder))
                print(f"  {name}: {said}", flush=True)
                problems += [] if is_right else [f"{name}: {said}"]
    return problems


def replay(platform: Platform, folder: Path, library: Path) -> tuple[bool, str]:
    """Run `replay.exe` of a folder with a library and the recording there.

    Return whether all agrees, and its words.
    """
    command = [*runner(platform), "./replay.exe", str(library), "recording"]
    environment = {**os.environ, "WINEPREFIX": str(BUILD / "wine"), "WINEDEBUG": "-all"}
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
    except subprocess.TimeoutExpired:
        return False, "it has not ended after 10 minutes"
    said = result.stdout.strip() or result.stderr.strip()
    if result.returncode < 0:
        said = f"it ended with {signal.Signals(-result.returncode).name} {said}".rstrip()
    return result.returncode == 0, said


def why_not_run(platform: Platform, processor: Processor) -> str | None:
    """Return why a library for a processor class of a platform cannot run here, None if it can."""
    if platform.system == "darwin":
        return "which only macOS can"
    program, *arguments = runner(platform) or [sys.executable]
    if shutil.which(program) is None or not all(map(os.path.exists, arguments[1:])):
        return f"for lack of {' '.join([program, *arguments])}"
    if processor is not NEON and processor not in supported_processors():
        return "since this processor is of another class"
    return None


def runner(platform: Platform) -> list[str]:
    """Return the program, and its arguments, that runs those of a platform; nothing where this
    machine itself does.
    """
    if platform.system == "win32":
        return [shutil.which("wine64") or WINE]
    if platform.processors == (NEON,):
        return ["qemu-aarch64-static", "-L", ARM_ROOT]
    return []


@cache
def recorded(source: str, dtype: torch.dtype) -> Path:
    """Return a recording of the library of a source, from calls of this machine's own library for a
    type of matmuls.
    """
    settings, path = read_settings(), BUILD / f"{Path(source).stem}-{str(dtype)[6:]}.recording"
    # tiles want another layout of the weights than all other classes have
    processor = next(p for p in supported_processors() if p is not AMX and p.matmul_dtype == dtype)
    record = record_training if source.startswith("training") else record_decoding
    record(path, processor, settings)
    return path
