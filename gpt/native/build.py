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
from gpt.system.progress import Report, announce_if_slow, silent

NAMES = ("clang++",) if sys.platform == "win32" else ("c++", "g++", "clang++")
"""Names of compilers, the preferred one first.

Not GCC on Windows, which spills wide registers to a stack that is not aligned for them (bug 54412).
"""
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-shared", "-fvisibility=hidden", "-Wno-psabi")
"""Flags of every library.

Multiplications and additions are fused where possible: Clang's default differs from GCC's. All
symbols but the interface are hidden: inline functions of two libraries, of different classes of
processors, would be merged.
"""


@dataclass(frozen=True)
class Compiler:
    """A compiler that runs.

    Attributes:
        command: the words that call it.
        version: what it says of itself, by which libraries of different versions are told apart.
        is_zig: whether it is the Clang of Zig, which spells base architectures in its own way.
    """

    command: tuple[str, ...]
    version: str
    is_zig: bool = False

    @property
    def name(self) -> str:
        return "zig" if self.is_zig else Path(self.command[0]).stem

    def arguments(self, flags: Sequence[str]) -> list[str]:
        """Return the command that compiles a shared library, without its source and output.

        Args:
            flags: those of the library, beside `FLAGS`, which every library has.
        """
        if self.is_zig:
            flags = [flag.replace("-march=x86-64", "-march=x86_64") for flag in flags]
        return [*self.command, *FLAGS, *system_flags(sys.platform, self.is_zig), *flags]


def system_flags(platform: str, is_zig: bool) -> tuple[str, ...]:
    if platform != "win32":
        return ("-fPIC", "-pthread")
    # Windows would not find the runtime libraries of other compilers, so they are linked in.
    return () if is_zig else ("-static",)


def find_compilers() -> Iterator[Compiler]:
    """Yield the compilers of this machine, the preferred one first, each once."""
    seen: set[Path] = set()
    for name in NAMES:
        path = shutil.which(name)
        if path is None:
            continue
        # On most systems `c++` is a link to one of the others, which is not to be tried again.
        program = Path(path).resolve()
        if program in seen:
            continue
        seen.add(program)
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
    """Return the compiler at a path if it reports a version, else None.

    The `c++` of macOS may be a program that only says where to get a compiler.
    """
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return Compiler((path,), result.stdout) if result.returncode == 0 else None


SOURCES = Path(__file__).parent / "src"
"""The C++ sources of the package."""
PREBUILT = Path(__file__).parent / "prebuilt"
"""Libraries that a wheel brings, for every processor class of its platform; a clone has none."""
SECONDS = 1800
"""Longest time of a compilation; the first one by Zig takes minutes on a busy machine."""
CHECKSUM_DIGITS = 16
"""Hexadecimal digits of a checksum in a file's name: it shows damage, and is no defence."""
KEY_DIGITS = 16
"""Hexadecimal digits of a key in a file's name: 64 bits tell apart all libraries of a machine."""
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
        DeviceError: none may be used; the message is about the last one.
    """
    key = (source, *processors, settings.cache_dir)
    if key in _LOADED:
        return _LOADED[key]
    # The classes come best first; where a library fails, that of the following class is tried.
    for processor, following in zip_longest(processors, processors[1:]):
        library = find_library(source, processor, settings.cache_dir, report, flags)
        # The result of the trial is kept in this folder. Without it every start tries the library.
        with suppress(OSError):
            make_kernels_folder(settings.cache_dir)
        trial = Trial(library, source, processor.name, kernels_folder(settings.cache_dir))
        reason = trial.unusable_reason(report)
        if reason is None:
            # A crash while the library is in use is noted, and the library tried again.
            trial.watch()
            _LOADED[key] = open_library(library), processor
            return _LOADED[key]
        failure = f"the {processor.name} kernels are not used here: {reason}"
        if following is not None:
            report(f"{failure}; using {following.name}")
    raise DeviceError(failure)


def find_library(
    source: str,
    processor: Processor,
    cache: Path,
    report: Report = silent,
    flags: Sequence[str] = (),
    compiler: Compiler | None = None,
) -> Path:
    """Return the library built from a source: that of the wheel, or of the cache, or a new one.

    A library of a wheel is passed over if a source was edited, or if a compiler is given. Two
    processes may compile at once: each writes a file of its own and renames it.

    Args:
        source: path below `src`, such as "decoding/engine.cpp", or an absolute one.
        compiler: None means the preferred one of this machine.

    Raises:
        DeviceError: it cannot be compiled, or others may have written it.
    """
    folder = kernels_folder(cache)
    require_own(cache, folder)
    if compiler is None:
        # The key has a hash of the sources, so that edited ones have no library in the wheel.
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
        # The file is checked as well as its folder, since loading it runs its code.
        require_own(found)
        return found
    except OSError as error:
        raise DeviceError(
            f"{source} cannot be compiled: {error}; set XDG_CACHE_HOME to use another folder"
        ) from None


def open_library(library: Path) -> ctypes.CDLL:
    """Load a library into this process; raise DeviceError where the system refuses it."""
    torch_folder = Path(torch.__file__).parent
    openmp = [
        *torch_folder.glob("lib/libgomp*.so*"),
        *torch_folder.parent.glob("torch.libs/libgomp*.so*"),
    ]
    try:
        # Libraries loaded from now on find the symbols of torch's OpenMP library, on Linux, and so
        # share its threads; see `parallel.h`.
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

    The library may be missing. Its file is named by the key and by its own checksum. So a truncated
    file is noticed, which would end the process with a bus error when it is loaded; and of two
    processes that store different libraries, neither can damage the other's.
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
        # Windows does not replace a file in use, and another process may use the same library.
        if not _is_whole(library):
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
    """Return a name with a hash of the parts, the source and every file that it may include.

    Null characters and sizes separate what is hashed, so that no two lists give the same bytes.
    """
    digest = hashlib.sha256("\0".join((*parts, source)).encode())
    # Editors leave temporary files whose names begin with a dot.
    included = sorted(path for path in SOURCES.rglob("[!.]*") if path.suffix in (".h", ".cpp"))
    for path in (SOURCES / source, *included):
        # A name is hashed without the folder of the package, which differs between machines. An
        # absolute `source`, as tests give it, lies elsewhere.
        name = path.name
        if path.is_relative_to(SOURCES):
            name = path.relative_to(SOURCES).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return f"{Path(source).stem}-{digest.hexdigest()[:KEY_DIGITS]}"


def _compile(
    command: list[str],
    compiler_name: str,
    source: str,
    title: str,
    cached: CachedLibrary,
    report: Report,
) -> Path:
    """Run the compiler, and keep the library under its key and checksum.

    If it fails, its messages are kept in a log beside the libraries.

    Args:
        title: what messages call the library.
    """
    log = cached.folder / f"{cached.key}.log"
    start = time.monotonic()
    report(f"compiling {title}: once, by {compiler_name}, in seconds (Zig takes a minute)")
    # `temporary_file` gives a name in the folder of the log, from which the library can be renamed.
    with (
        announce_if_slow(report, f"still compiling {title}", seconds=10),
        temporary_file(log) as built,
    ):
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
    # The log of an earlier failure would mislead.
    log.unlink(missing_ok=True)
    report(f"compiled {title} in {time.monotonic() - start:.1f} s; kept as {library}")
    return library
