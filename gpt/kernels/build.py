"""Compiling a C++ source into a shared library, once per source, compiler and processor.

The library has a C interface and is loaded by ctypes: without torch's headers it compiles in a
second, and it does not depend on torch's binary interface.
"""

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from gpt.errors import DeviceError
from gpt.report import Report, silent

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")
COMPILERS = ("c++", "g++", "clang++")


def load_library(name: str, cache: Path, report: Report = silent, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The library built from `src/<name>.cpp`; compiled if it is not in the cache yet.

    Two processes may do this at once: each compiles into a file of its own, and renames it.

    Args:
        name: of the source, without its ending.
        cache: folder that keeps libraries; where it cannot be written, the system's temporary folder does.
        report: told of a compilation, how long it took and where its result lies.
        flags: for the compiler, beside those it always gets.

    Raises:
        DeviceError: there is no compiler, it fails (its message is kept in a log beside the library), the
            disk is full, or the library cannot be loaded.
    """
    compiler = find_compiler()
    if compiler is None:
        raise DeviceError("no C++ compiler was found (c++, g++ or clang++)")
    command = [compiler, *FLAGS, *flags, *_openmp_of_torch()]
    try:
        library = _find_or_compile(command, name, cache / "native", report)
    except OSError as error:
        raise DeviceError(f"{name}.cpp cannot be compiled: {error}") from None
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise DeviceError(f"{library} cannot be loaded: {error}; remove it to have it made again") from None


def _find_or_compile(command: list[str], name: str, folder: Path, report: Report) -> Path:
    file = f"{Path(name).name}-{_fingerprint(command)}.so"
    if (folder / file).is_file():  # perhaps put there by somebody else, and not to be written
        return folder / file
    library = _writable(folder) / file
    if not library.is_file():
        start = time.monotonic()
        _compile(command, SOURCES / f"{name}.cpp", library)
        report(f"compiled {name}.cpp in {time.monotonic() - start:.1f} s; kept as {library}")
    return library


def find_compiler() -> str | None:
    """Path of a C++ compiler, or None."""
    return next((path for path in map(shutil.which, COMPILERS) if path is not None), None)


def _compile(command: list[str], source: Path, library: Path) -> None:
    handle, name = tempfile.mkstemp(dir=library.parent, suffix=".so")
    os.close(handle)
    try:
        result = subprocess.run([*command, str(source), "-o", name], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            log = library.with_suffix(".log")
            log.write_text(result.stdout + result.stderr, encoding="utf-8")
            raise DeviceError(f"the C++ compiler failed on {source.name}; what it said is in {log}")
        os.replace(name, library)
    finally:
        Path(name).unlink(missing_ok=True)


def _fingerprint(command: list[str]) -> str:
    """Changes with the sources, the compiler, its flags and the processor."""
    digest = hashlib.sha256(" ".join(command).encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    digest.update(version + _processor())
    return digest.hexdigest()[:16]


def _processor() -> bytes:
    """What the processor can do, as far as the system says: a home folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")


def _openmp_of_torch() -> list[str]:
    """Link to the OpenMP library that torch brings: a second one would fight it for the cores."""
    folder = Path(torch.__file__).parent / "lib"
    found = sorted(folder.glob("libgomp*.so*"))
    return [f"-L{folder}", f"-l:{found[0].name}", f"-Wl,-rpath,{folder}"] if found else []


def _writable(folder: Path) -> Path:
    """The folder, or one of this user's among the temporary files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _own_temporary()
    return folder if os.access(folder, os.W_OK) else _own_temporary()


def _own_temporary() -> Path:
    """One folder a user, so that a library is compiled once; what others could have put there is not loaded."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"gpt-native-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077
    except OSError:
        is_own = False
    return folder if is_own else Path(tempfile.mkdtemp(prefix="gpt-native-"))
