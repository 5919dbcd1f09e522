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

from gpt.native.cache import kernels_folder, make_kernels_folder, require_own
from gpt.native.verdicts import Trial, TrialProcess, was_tried
from gpt.system.environment import Settings
from gpt.system.errors import DeviceError
from gpt.system.files import sha256_of, temporary_file
from gpt.system.processor import Processor
from gpt.system.progress import Report, announce_if_slow, silent

NAMES = ("clang++",) if sys.platform == "win32" else ("c++", "g++", "clang++")
"""Names of compilers, the preferred one first.

GCC is left out on Windows, where it stores wide registers on a stack that is not aligned for them
(GCC bug 54412).
"""
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-shared",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wno-psabi",
)
"""Compiler flags of every library.

`-ffp-contract=fast` fuses multiplications and additions, as GCC does by default and Clang does not.
`-fvisibility=hidden` hides all functions but the interface: otherwise the loader could call an
inline function of a library for another processor class in place of the library's own.
`-fvisibility-inlines-hidden` hides those of the standard library, whose headers ask to be seen.
`-Wno-psabi` silences GCC's notes about vectors as arguments, which the interface does not have.
"""


@dataclass(frozen=True)
class Compiler:
    """A working compiler.

    Attributes:
        command: the command line that starts it, as a list of words.
        version: what it prints as its version; libraries of other versions have other keys.
        is_zig: whether it is the Clang of Zig, which writes `x86_64` in place of `x86-64`.
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
            flags: flags of this library, in addition to `FLAGS`.
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
        # On most systems `c++` is a link to one of the other compilers.
        program = Path(path).resolve()
        if program in seen:
            continue
        seen.add(program)
        compiler = _compiler_at(path)
        if compiler is not None:
            yield compiler
    zig_version = _zig_version()
    if zig_version is not None:
        # With -P Python does not import a `ziglang.py` from the current folder.
        command = (sys.executable, "-P", "-m", "ziglang", "c++")
        yield Compiler(command, f"ziglang {zig_version}", is_zig=True)


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
"""The libraries in a wheel, for every processor class of its platform; a clone has none."""
SECONDS = 1800
"""Time limit of a compilation; the first one by Zig takes minutes on a busy machine."""
CHECKSUM_DIGITS = 16
"""Hexadecimal digits of a checksum in a file's name, which shows damage but not an attack."""
KEY_DIGITS = 16
"""Hexadecimal digits of a key in a file's name: 64 bits tell apart all libraries of a machine."""
READABLE = 0o644
"""File mode of a library: everyone may read it, whatever mode the linker gave the new file."""
_LOADED: dict[tuple[object, ...], tuple[ctypes.CDLL, Processor]] = {}
"""The libraries that `load_usable` has loaded in this process."""


def load_usable(
    source: str,
    processors: Sequence[Processor],
    settings: Settings,
    report: Report,
    flags: Sequence[str] = (),
) -> tuple[ctypes.CDLL, Processor]:
    """Load the library of a source for the best processor class that passes its trial.

    Args:
        source: path below `src`, such as "decoding/engine.cpp".
        processors: the classes to choose from, the best first.
        flags: compiler flags of this library, in addition to `FLAGS`.

    Returns:
        The library, and the class that it was compiled for.

    Raises:
        DeviceError: no library passes its trial; the message is about the last class.
    """
    key = (source, *processors, settings.cache_dir)  # a source always has the same flags
    if key in _LOADED:
        return _LOADED[key]
    folder = kernels_folder(settings.cache_dir)
    # If the library of a class fails, that of the following class is tried. For the last class
    # `following` is None.
    for processor, following in zip_longest(processors, processors[1:]):
        with TrialProcess() as process:
            if not was_tried(folder, source):
                # There will be a trial. Its process is started already, to import torch while the
                # library is compiled. If it cannot be started, the trial tries again and says why.
                with suppress(OSError):
                    process.start()
            library = find_library(source, processor, settings.cache_dir, report, flags)
            # The result of the trial is stored in this folder. Without the folder, the library can
            # be used all the same, but every process has to try it again.
            with suppress(OSError):
                make_kernels_folder(settings.cache_dir)
            trial = Trial(library, source, processor.name, folder)
            reason = trial.unusable_reason(process, report)
        if reason is None:
            # If this process crashes, a file says so, and the next process tries the library again.
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
    """Return the library of a source from the wheel or the cache; compile it if both lack it.

    The wheel's library is not used if a source was edited, or if a compiler is given. Two processes
    may compile the same library at once: each writes a file of its own and renames it.

    Args:
        source: path below `src`, such as "decoding/engine.cpp", or an absolute path.
        cache: the cache folder of this user.
        flags: compiler flags of this library, in addition to `FLAGS`.
        compiler: None means the preferred compiler of this machine.

    Raises:
        DeviceError: the library cannot be compiled, or another user can have written it.
    """
    folder = kernels_folder(cache)
    # Whoever can write here could have this process run any code.
    require_own(cache, folder)
    if compiler is None:
        # The key has a hash of the sources, so that no library of the wheel is found for edited
        # ones.
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
        # The file is checked as well as its folder, since loading a library runs its code.
        require_own(found)
        return found
    except OSError as error:
        raise DeviceError(
            f"{source} cannot be compiled: {error}; set XDG_CACHE_HOME to use another folder"
        ) from None


def open_library(library: Path) -> ctypes.CDLL:
    """Load a library into this process; raise DeviceError where the system refuses it."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise DeviceError(
            f"{library} cannot be loaded: {error}; remove it to have it compiled again"
        ) from None


@dataclass(frozen=True)
class CachedLibrary:
    """The place of a library in a folder; the library itself may be missing.

    The file's name has the key and a checksum of the file. The checksum shows a truncated file,
    which would end the process with a bus error when it is loaded. It also keeps two processes that
    compiled different files from overwriting each other's file.

    Attributes:
        key: a hash of everything that the library is built from; see `_key`.
    """

    folder: Path
    key: str
    suffix: str = ".dll" if sys.platform == "win32" else ".so"

    def find(self) -> Path | None:
        """Return the library's path; None if it is missing or has changed since it was stored."""
        candidates = sorted(self.folder.glob(f"{self.key}-*{self.suffix}"))
        return next((path for path in candidates if _is_whole(path)), None)

    def store(self, built: Path) -> Path:
        """Move a newly built library into the folder and return its path there."""
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
    """Return the key of a library in a wheel, which does not depend on the compiler."""
    return _key(source, *processor.compiler_flags, *flags)


def _key(source: str, *parts: str) -> str:
    """Return the source's name with a hash of `parts`, the source and all that it may include.

    Null characters and file sizes separate the hashed texts and files. Without them two different
    lists could be the same bytes when joined.

    Args:
        parts: texts that the library depends on, such as compiler flags.
    """
    digest = hashlib.sha256("\0".join((*parts, source)).encode())
    # Editors leave temporary files whose names begin with a dot.
    included = sorted(path for path in SOURCES.rglob("[!.]*") if path.suffix in (".h", ".cpp"))
    for path in (SOURCES / source, *included):
        # The path below `SOURCES` is hashed, since the path of the folder differs between machines.
        # A test may give an absolute `source` outside of `SOURCES`.
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
    """Run the compiler, store the library and return its path.

    If the compiler fails, its messages are written into a log beside the libraries.

    Args:
        title: the library's name in messages.
        cached: where the library is stored.
    """
    log = cached.folder / f"{cached.key}.log"
    start = time.monotonic()
    report(f"compiling {title} by {compiler_name}, once: it takes seconds, or a minute with Zig")
    # The compiler writes a temporary file beside the log, in the folder of the libraries. There it
    # is on the same disk as the library's place, so that it can be renamed to that place.
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
    # A log of an earlier failure no longer applies.
    log.unlink(missing_ok=True)
    report(f"compiled {title} in {time.monotonic() - start:.1f} s; kept as {library}")
    return library
