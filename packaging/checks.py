"""Check a wheel by the tools of its platform: what it contains, what its libraries need, and what
the index shows.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 8_000_000
EXPECTED = (
    "gpt/py.typed",
    "gpt/native/fingerprint.json",
    "gpt/extras/web/shell.html",
    "gpt/native/src/simd.h",
    ".dist-info/licenses/LICENSE",
)
"""Files that are easily forgotten, by the ends of their names."""
UNWANTED = (".pyc", ".log", ".o", ".pdb")
WINDOWS_LIBRARIES = ("kernel32.dll", "ntdll.dll", "api-ms-win-crt-")
"""Beginnings of the names of libraries that Windows 10 and later have."""
MACOS_LIBRARIES = (b"/usr/lib/", b"/System/Library/")


def check_wheel(wheel: Path, tag: str) -> list[str]:
    """Return what is wrong with a wheel for a platform, given by its tag; nothing if it is fit to
    be published.
    """
    problems = [*check_contents(wheel), *_run("twine", "check", "--strict", str(wheel))]
    if "linux" in tag:
        problems += _run("auditwheel", "show", str(wheel), expected=f'platform tag: "{tag}"')
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        for name in sorted(name for name in archive.namelist() if "/prebuilt/" in name):
            library = Path(archive.extract(name, scratch))
            found = (
                check_dll(library)
                if "win" in tag
                else check_dylib(library, tag)
                if "macosx" in tag
                else ()
            )
            problems += [f"{name}: {problem}" for problem in found]
    return problems


def check_contents(wheel: Path) -> Iterator[str]:
    """Yield what is missing in a wheel, or should not be there."""
    if wheel.stat().st_size > MAX_BYTES:
        yield f"it has more than {MAX_BYTES / 1e6:.0f} MB"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for end in EXPECTED:
        if not any(name.endswith(end) for name in names):
            yield f"{end} is missing"
    for name in names:
        if not name.startswith("gpt/") and ".dist-info/" not in name:
            yield f"{name} is outside the package"
        if name.endswith(UNWANTED):
            yield f"{name} should not be there"


def check_dll(library: Path) -> Iterator[str]:
    """Yield what a DLL needs that Windows does not have."""
    import pefile

    with pefile.PE(str(library)) as parsed:
        for needed in parsed.DIRECTORY_ENTRY_IMPORT:
            if not needed.dll.decode().lower().startswith(WINDOWS_LIBRARIES):
                yield f"it needs {needed.dll.decode()}"


def check_dylib(library: Path, tag: str) -> Iterator[str]:
    """Yield what keeps a library from being loaded by the macOS of a tag, as far as its headers
    tell.
    """
    from macholib.mach_o import CPU_TYPE_NAMES, LC_BUILD_VERSION, LC_CODE_SIGNATURE, LC_LOAD_DYLIB
    from macholib.MachO import MachO

    (header,) = MachO(str(library)).headers
    commands = {load.cmd: (command, data) for load, command, data in header.commands}
    if CPU_TYPE_NAMES.get(header.header.cputype) != "ARM64":
        yield "it is for another processor"
    if LC_CODE_SIGNATURE not in commands:
        yield "it has no signature, without which an M1 or later loads nothing"
    oldest = commands[LC_BUILD_VERSION][0].minos
    if f"macosx_{oldest >> 16}_{oldest >> 8 & 255}_arm64" != tag:
        yield f"it is for macOS {oldest >> 16}.{oldest >> 8 & 255} and later"
    for load, _, data in header.commands:
        if load.cmd == LC_LOAD_DYLIB and not data.startswith(MACOS_LIBRARIES):
            yield f"it needs {data.decode()}"


def _run(tool: str, *arguments: str, expected: str = "") -> list[str]:
    """Return what a tool says if it fails, or if it does not say what is expected."""
    result = subprocess.run(
        [sys.executable, "-m", tool, *arguments], capture_output=True, text=True, check=False
    )
    is_fine = result.returncode == 0 and expected in " ".join(result.stdout.split())
    return [] if is_fine else [f"{tool}: {result.stdout}{result.stderr}".strip()]
