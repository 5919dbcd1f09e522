"""Compile a C++ source into a shared library, once per source, compiler and processor class.

The library has a C interface and is loaded by ctypes: without torch's headers it compiles in
seconds, and it does not depend on torch's binary interface.
"""

import ctypes
import hashlib
import subprocess
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import torch

from gpt.kernels.compiler import Compiler, find_compiler
from gpt.kernels.library_cache import CachedLibrary, writable_folder
from gpt.kernels.verdicts import Verdict
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.files import temporary_file
from gpt.system.processor import Processor
from gpt.system.progress import Report, announced, silent

SOURCES = Path(__file__).parent / "src"
PREBUILT = Path(__file__).parent / "prebuilt"
"""Libraries that a wheel brings, for every processor class of its platform; a clone has none."""


_LOADED: dict[tuple[object, ...], tuple[ctypes.CDLL, Processor]] = {}
"""What `load_usable` has loaded in this process."""
SECONDS = 1800
"""Longest compilation; Zig's first takes minutes on a busy machine."""


def load_usable(
    source: str, processors: Sequence[Processor], settings: Settings, report: Report, flags: Sequence[str] = ()
) -> tuple[ctypes.CDLL, Processor]:
    """Load the library of a source for the first of some classes that may be used here, and return both."""
    if loaded := _LOADED.get(key := (source, *processors, settings.cache_dir)):
        return loaded
    for processor, following in zip_longest(processors, processors[1:]):
        library = _find(source, processor, settings.cache_dir, report, flags, None)
        verdict = Verdict(library, source, processor.name, writable_folder(settings.cache_dir / "kernels"))
        reason = verdict.why_not(report)
        if reason is None:
            verdict.watch()
            _LOADED[key] = open_library(library), processor
            return _LOADED[key]
        unused = f"the {processor.name} kernels are not used here: {reason}"
        if following is not None:
            report(f"{unused}; using {following.name}")
    raise DeviceError(unused)


def load_library(
    source: str,
    processor: Processor,
    cache: Path,
    report: Report = silent,
    flags: Sequence[str] = (),
    compiler: Compiler | None = None,
) -> ctypes.CDLL:
    """Load the library built from a source: that of the wheel, or of the cache, or compile it now.

    That of a wheel is passed over once a source has been edited, or if a compiler is given. Two processes may compile
    at once: each writes its own file and renames it.

    Args:
        source: path below `src`, such as "decoding/engine.cpp", or an absolute one.
        cache: folder that keeps libraries; if it cannot be written, the system's temporary folder does.
        flags: for the compiler, after those of every library.
        compiler: None: the preferred one of this machine.
    """
    return open_library(_find(source, processor, cache, report, flags, compiler))


def _find(
    source: str, processor: Processor, cache: Path, report: Report, flags: Sequence[str], compiler: Compiler | None
) -> Path:
    prebuilt = None if compiler else CachedLibrary(PREBUILT, prebuilt_key(source, processor, flags)).find()
    return prebuilt or _find_or_compile(source, processor, cache, report, flags, compiler)


def prebuilt_key(source: str, processor: Processor, flags: Sequence[str] = ()) -> str:
    """Return the name that a library has in a wheel, whichever compiler it is from."""
    return f"{Path(source).stem}-{_fingerprint([*processor.compiler_flags, *flags, source], SOURCES / source)}"


def _find_or_compile(
    source: str, processor: Processor, cache: Path, report: Report, flags: Sequence[str], compiler: Compiler | None
) -> Path:
    compiler = compiler or find_compiler()
    if compiler is None:
        raise DeviceError("no C++ compiler was found; install g++ or clang++, or: pip install 'glassgpt[compiler]'")
    command = compiler.arguments([*processor.compiler_flags, *flags])
    key = f"{Path(source).stem}-{_fingerprint([*command, source, compiler.version], SOURCES / source)}"
    folder = cache / "kernels"
    try:
        library = CachedLibrary(folder, key).find()  # perhaps put there by someone else, and read-only
        if library is None:
            cached = CachedLibrary(writable_folder(folder), key)
            title = f"{source} for {processor.name}"
            library = cached.find() or _compile(command, compiler, source, title, cached, report)
    except OSError as error:
        raise DeviceError(f"{source} cannot be compiled: {error}") from None
    return library


def open_library(library: Path) -> ctypes.CDLL:
    try:
        _share_openmp_of_torch()
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise DeviceError(f"{library} cannot be loaded: {error}; remove it to have it compiled again") from None


def _compile(
    command: list[str], compiler: Compiler, source: str, title: str, cached: CachedLibrary, report: Report
) -> Path:
    damaged = ", which is damaged in the cache" if cached.files() else ""
    report(f"compiling {title}{damaged}: once, by {compiler.name}, {compiler.duration}")
    start = time.monotonic()
    with announced(report, f"still compiling {title}", seconds=10), temporary_file(cached.log) as built:
        command = [*command, str(SOURCES / source), "-o", str(built)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise DeviceError(f"the C++ compiler did not end on {source} within {SECONDS} s") from None
        if result.returncode != 0:
            cached.log.write_text(result.stdout + result.stderr, encoding="utf-8")
            raise DeviceError(f"the C++ compiler failed on {source}; its messages are in {cached.log}")
        library = cached.store(built)
    report(f"compiled {title} in {time.monotonic() - start:.1f} s; kept as {library}")
    return library


def _share_openmp_of_torch() -> None:
    """Make libraries loaded from now on use torch's OpenMP library, on Linux; see `parallel.h`."""
    package = Path(torch.__file__).parent
    for path in [*package.glob("lib/libgomp*.so*"), *package.parent.glob("torch.libs/libgomp*.so*")]:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _fingerprint(parts: Sequence[str], source: Path) -> str:
    """Hash the parts, the source and every file that it may include."""
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in [source, *sorted(path for path in SOURCES.rglob("[!.]*") if path.suffix in (".h", ".cpp"))]:
        name = path.relative_to(SOURCES).as_posix() if path.is_relative_to(SOURCES) else path.name
        digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
