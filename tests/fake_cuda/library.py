"""The no-op CUDA backend: compiled against the installed torch, and loaded before torch is imported."""

import ctypes
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("no_op_cuda.cpp")


def find_compiler() -> str | None:
    """A C++ compiler, or None."""
    return next(
        (path for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and (path := shutil.which(name))),
        None,
    )


def build(compiler: str, folder: Path) -> Path:
    """Compile into a folder; processes that do so at once leave one whole file."""
    library, temporary = folder / f"{SOURCE.stem}.so", folder / f"{SOURCE.stem}.{os.getpid()}.so"
    if not library.exists():
        include = f"-I{_torch() / 'include'}"
        command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", include, str(SOURCE), "-o", str(temporary)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        temporary.replace(library)
    return library


def load(library: Path) -> None:
    """Load torch's core and the backend into this process, which has not imported torch yet."""
    for path in (_torch() / "lib" / "libc10.so", _torch() / "lib" / "libtorch_cpu.so", library):
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _torch() -> Path:
    """Folder of the package; finding it does not import it."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
