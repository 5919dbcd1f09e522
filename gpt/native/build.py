"""Compile a C++ source into a shared library, once per source, compiler and processor class.

The library has a C interface and is loaded by ctypes: without torch's headers it compiles in
seconds, and it does not depend on torch's binary interface. GCC and Clang are called alike. Without
either, the package `ziglang` brings a Clang from the package index.
"""

import ctypes
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from gpt.native.cache import kernels_folder, make_kernels_folder, require_own
from gpt.native.verdicts import Trial
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.files import sha256_of, temporary_file
from gpt.system.processor import Processor
from gpt.system.progress import Report, announced, silent

NAMES = ("clang++",) if sys.platform == "win32" else ("c++", "g++", "clang++")
"""GCC on Windows spills wide registers to a stack that is not aligned for them (bug 54412)."""
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-shared", "-fvisibility=hidden", "-Wno-psabi")
"""Flags of every library.

Multiplications and additions are fused where possible: Clang's default differs from GCC's. All
symbols but the interface are hidden: inline functions of two libraries, of different classes of
processors, would be merged.
"""


@dataclass(frozen=True)
class Compiler:
    """A compiler that runs: how to call it, and its own description.

    Zig spells base architectures in its own way.
    """

    command: tuple[str, ...]
    version: str
    is_zig: bool = False

    @property
    def name(self) -> str:
        return "zig" if self.is_zig else Path(self.command[0]).stem

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Return the command for a shared library, up to its source.

        `flags` are added to those of every library.
        """
        if self.is_zig:
            flags = [flag.replace("-march=x86-64", "-march=x86_64") for flag in flags]
        return [*self.command, *FLAGS, *system_flags(sys.platform, self.is_zig), *flags]


def system_flags(platform: str, is_zig: bool) -> tuple[str, ...]:
    if platform != "win32":
        return ("-fPIC", "-pthread")
    # the libraries of other compilers are not where Windows looks for DLLs
    return () if is_zig else ("-static",)


def find_compilers() -> Iterator[Compiler]:
    """Yield the compilers of this machine, the preferred one first, each once."""
    seen: set[Path] = set()
    for name in NAMES:
        path = shutil.which(name)
        # `c++` is a link to one of the others on most systems
        if path is None or Path(path).resolve() in seen:
            continue
        seen.add(Path(path).resolve())
        compiler = _compiler_at(path)
        if compiler is not None:
            yield compiler
    version = _zig_version()
    if version is not None:
        # -P: no `ziglang.py` of the current folder is run
        command = (sys.executable, "-P", "-m", "ziglang", "c++")
        yield Compiler(command, f"ziglang {version}", is_zig=True)


def find_compiler() -> Compiler | None:
    return next(find_compilers(), None)


def _zig_version() -> str | None:
    try:
        return importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler_at(path: str) -> Compiler | None:
    """Return the compiler at a path if it reports a version.

    The `c++` of macOS may only say where to get one.
    """
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return Compiler((path,), result.stdout) if result.returncode == 0 else None


SOURCES = Path(__file__).parent / "src"
PREBUILT = Path(__file__).parent / "prebuilt"
"""Libraries that a wheel brings, for every processor class of its platform; a clone has none."""
SECONDS = 1800
"""Longest compilation; Zig's first takes minutes on a busy machine."""
CHECKSUM_DIGITS = 16
"""Hexadecimal digits of a checksum in a file's name; it tells damage, and no attack."""
READABLE = 0o644
"""Mode of a library, since linkers leave a temporary file unreadable to others."""
_LOADED: dict[tuple[object, ...], tuple[ctypes.CDLL, Processor]] = {}
"""What `load_usable` has loaded in this process."""


def load_usable(
    source: str,
    processors: Sequence[Processor],
    settings: Settings,
    report: Report,
    flags: Sequence[str] = (),
) -> tuple[ctypes.CDLL, Processor]:
    """Load the library of a source for the first of some classes that may be used here.

    Returns:
        The library and its class.

    Raises:
        DeviceError: none may be used; the message is about the last.
    """
    key = (source, *processors, settings.cache_dir)
    if key in _LOADED:
        return _LOADED[key]
    for processor, following in zip_longest(processors, processors[1:]):
        library = find_library(source, processor, settings.cache_dir, report, flags)
        # for the result of the trial; where it cannot be made, every start tries anew
        with suppress(OSError):
            make_kernels_folder(settings.cache_dir)
        trial = Trial(library, source, processor.name, kernels_folder(settings.cache_dir))
        reason = trial.unusable_reason(report)
        if reason is None:
            trial.watch()
            _LOADED[key] = open_library(library), processor
            return _LOADED[key]
        unused = f"the {processor.name} kernels are not used here: {reason}"
        if following is not None:
            report(f"{unused}; using {following.name}")
    raise DeviceError(unused)


def find_library(
    source: str,
    processor: Processor,
    cache: Path,
    report: Report = silent,
    flags: Sequence[str] = (),
    compiler: Compiler | None = None,
) -> Path:
    """Return the library built from a source: that of the wheel, or of the cache, or a new one.

    That of a wheel is passed over once a source has been edited, or if a compiler is given. Two
    processes may compile at once: each writes its own file and renames it.

    Args:
        source: path below `src`, such as "decoding/engine.cpp", or an absolute one.
        compiler: None: the preferred one of this machine.

    Raises:
        DeviceError: it cannot be compiled, or others may have written it.
    """
    folder = kernels_folder(cache)
    require_own(cache, folder)
    if compiler is None:
        prebuilt = CachedLibrary(PREBUILT, prebuilt_key(source, processor, flags)).find()
        if prebuilt is not None:
            return prebuilt
    compiler = compiler or find_compiler()
    if compiler is None:
        raise DeviceError(
            "no C++ compiler was found; "
            "install g++ or clang++, or: pip install 'glassgpt[compiler]'"
        )
    command = compiler.arguments([*processor.compiler_flags, *flags])
    cached = CachedLibrary(folder, _key(source, *command, compiler.version))
    try:
        found = cached.find()
        if found is None:
            make_kernels_folder(cache)
            found = _compile(
                command, compiler.name, source, f"{source} for {processor.name}", cached, report
            )
        require_own(found)
        return found
    except OSError as error:
        raise DeviceError(
            f"{source} cannot be compiled: {error}; XDG_CACHE_HOME may name another folder"
        ) from None


def open_library(library: Path) -> ctypes.CDLL:
    """Load a library into this process; raise DeviceError where the system refuses it."""
    torch_folder = Path(torch.__file__).parent
    openmp = [
        *torch_folder.glob("lib/libgomp*.so*"),
        *torch_folder.parent.glob("torch.libs/libgomp*.so*"),
    ]
    try:
        # libraries loaded from now on use torch's OpenMP library, on Linux; see `parallel.h`
        for path in openmp:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise DeviceError(
            f"{library} cannot be loaded: {error}; remove it to have it compiled again"
        ) from None


@dataclass(frozen=True)
class CachedLibrary:
    """The place of a library in a folder, by a key of everything it is built from.

    The library may be missing.

    Its file is named by the key and by its checksum: loading a truncated one would end the process
    with a bus error, and of two processes that store different ones neither can damage the other's.
    """

    folder: Path
    key: str
    suffix: str = ".dll" if sys.platform == "win32" else ".so"

    def find(self) -> Path | None:
        """Return the library's path; None if it is missing or has changed since it was stored."""
        candidates = sorted(self.folder.glob(f"{self.key}-*{self.suffix}"))
        return next((path for path in candidates if _is_whole(path)), None)

    def store(self, built: Path) -> Path:
        """Move a library here and return its path."""
        library = self.folder / f"{self.key}-{sha256_of(built)[:CHECKSUM_DIGITS]}{self.suffix}"
        if not _is_whole(library):  # Windows does not replace a library in use
            built.chmod(READABLE)
            os.replace(built, library)
        return library


def _is_whole(library: Path) -> bool:
    try:
        return library.stem.endswith(f"-{sha256_of(library)[:CHECKSUM_DIGITS]}")
    except OSError:
        return False


def prebuilt_key(source: str, processor: Processor, flags: Sequence[str] = ()) -> str:
    """Return the name that a library has in a wheel, whichever compiler it is from."""
    return _key(source, *processor.compiler_flags, *flags)


def _key(source: str, *parts: str) -> str:
    """Return a name with a hash of the parts, the source and every file that it may include."""
    # null characters and sizes part what is hashed, so that no two lists give the same bytes
    digest = hashlib.sha256("\0".join((*parts, source)).encode())
    included = sorted(path for path in SOURCES.rglob("[!.]*") if path.suffix in (".h", ".cpp"))
    for path in (SOURCES / source, *included):
        is_ours = path.is_relative_to(SOURCES)
        name = path.relative_to(SOURCES).as_posix() if is_ours else path.name
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return f"{Path(source).stem}-{digest.hexdigest()[:16]}"


def _compile(
    command: list[str], by: str, source: str, title: str, cached: CachedLibrary, report: Report
) -> Path:
    """Run the compiler, and keep the library under its key and hash.

    What the compiler said of an error is kept too.
    """
    log = cached.folder / f"{cached.key}.log"
    start = time.monotonic()
    report(f"compiling {title}: once, by {by}, in ten seconds to two minutes")
    with announced(report, f"still compiling {title}", seconds=10), temporary_file(log) as built:
        command = [*command, str(SOURCES / source), "-o", str(built)]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"the C++ compiler did not end on {source} within {SECONDS} s"
            ) from None
        if result.returncode != 0:
            log.write_text(result.stdout + result.stderr, encoding="utf-8")
            raise DeviceError(f"the C++ compiler failed on {source}; its messages are in {log}")
        library = cached.store(built)
    log.unlink(missing_ok=True)
    report(f"compiled {title} in {time.monotonic() - start:.1f} s; kept as {library}")
    return library
