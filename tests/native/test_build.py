"""Compiled libraries: when they are made, that what is kept is what was made, and what they are
checked for.
"""

import ctypes
import errno
import importlib.metadata
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from gpt.native import build, contract
from gpt.native.build import FLAGS, Compiler, find_compilers, find_library, open_library
from gpt.native.contract import Activation, Kind, check_facts, fields, pointer
from gpt.native.decoding import decoder
from gpt.native.decoding.c_structs import STRUCTURES, CLayer, CMatrix
from gpt.native.training import bindings
from gpt.native.trial import decoding_difference, training_difference
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError
from gpt.system.processor import GENERIC, supported_processors

pytestmark = needs_compiler

SOURCE = """#include "../number.h"
extern "C" __attribute__((visibility("default"))) int answer() { return NUMBER; }
int hidden() { return NUMBER; }
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one source and its header, in the place of the package's."""
    folder = tmp_path / "src"
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "answer.cpp").write_text(SOURCE, encoding="utf-8")
    (folder / "number.h").write_text("#define NUMBER 42\n", encoding="utf-8")
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, sources: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every call of the compiler that makes something."""
    calls: list[list[str]] = []
    run: Callable[..., Any] = subprocess.run

    def watched(command: list[str], **options: Any) -> Any:
        calls.extend([command] * ("-o" in command))
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    return calls


def answer(cache: Path, **options: Any) -> int:
    return open_library(find_library("room/answer.cpp", GENERIC, cache, **options)).answer()


def test_source_is_compiled_once_into_a_whole_library(
    cache: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[int, str]] = []
    assert answer(cache, report=lambda line: lines.append((len(compilations), line))) == 42
    (before, start), (after, end) = lines
    assert (before, after) == (0, 1)
    assert start.startswith("compiling room/answer.cpp for generic by ")
    assert end.startswith("compiled room/answer.cpp for generic in ")
    made = Path(compilations[0][compilations[0].index("-o") + 1])
    # renamed when it is complete, so that nobody loads the half of one
    assert made.parent.parent == cache / "kernels"
    assert not made.exists()
    (library,) = (cache / "kernels").iterdir()
    assert library.stat().st_mode & 0o777 == 0o644  # everyone may read it
    assert not hasattr(open_library(library), "_Z6hiddenv")
    monkeypatch.setattr(
        Path, "mkdir", lambda *_, **__: pytest.fail("a cache that may be read-only is written to")
    )
    assert answer(cache, report=pytest.fail) == 42


def test_changed_source_macro_class_or_compiler_compiles_anew(cache: Path, sources: Path) -> None:
    """Each beside those that were there: another checkout may still want them."""
    answer(cache)
    (sources / "room" / "answer.cpp").write_text(
        SOURCE.replace("NUMBER;", "NUMBER + 1;"), encoding="utf-8"
    )
    assert answer(cache) == 43
    (sources / "number.h").write_text("#define NUMBER 7\n", encoding="utf-8")
    assert answer(cache) == 8
    assert answer(cache, flags=["-DMACRO"]) == 8
    find_library("room/answer.cpp", replace(GENERIC, macros=(*GENERIC.macros, "-O1")), cache)
    assert answer(cache, compiler=replace(next(find_compilers()), version="newer")) == 8
    # One library for each of the six calls: none has replaced another.
    assert len(list((cache / "kernels").iterdir())) == 6


def test_failed_compilations_are_one_line_and_tried_again(
    cache: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name, value, said in (
        (
            tempfile,
            "mkdtemp",
            refuse,
            r"^room/answer\.cpp cannot be compiled: \[Errno 28\] No space left[^\n]*$",
        ),
        (
            build,
            "SECONDS",
            0.01,
            r"^the C\+\+ compiler did not end on room/answer\.cpp within 0\.01 s$",
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            with pytest.raises(DeviceError, match=said):
                answer(cache)
    (sources / "number.h").write_text("#error nonsense\n", encoding="utf-8")
    with pytest.raises(
        DeviceError, match=r"the C\+\+ compiler failed on room/answer\.cpp[^\n]*$"
    ) as caught:
        answer(cache)
    (log,) = (cache / "kernels").iterdir()  # no half-made library beside it
    assert str(caught.value).endswith(str(log))
    assert "number.h:1" in log.read_text(encoding="utf-8")
    (sources / "number.h").write_text("#define NUMBER 7\n", encoding="utf-8")
    assert answer(cache) == 7


def test_damaged_library_is_made_anew_before_it_is_loaded(cache: Path) -> None:
    """The library is not loaded here: a process whose library is cut later ends by a bus error."""
    lines: list[str] = []

    def load() -> Path:
        return find_library("room/answer.cpp", GENERIC, cache, lines.append)

    whole = load().read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:middle],
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        b"",
    ):
        load().write_bytes(damaged)
        lines.clear()
        assert load().read_bytes() == whole
        assert load().read_bytes() == whole
        assert len(lines) == 2


def _exit_with_answer(cache: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        os._exit(sum(pool.map(lambda _: answer(cache), range(2))))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here"
)
def test_threads_and_processes_that_build_at_once_all_succeed(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_exit_with_answer, args=(cache,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [84, 84]


@pytest.mark.parametrize("compiler", list(find_compilers()), ids=lambda compiler: compiler.name)
@pytest.mark.timeout(1800)  # zig compiles its C++ library first
def test_libraries_of_every_compiler_agree_with_pytorch(compiler: Compiler) -> None:
    cache = read_settings().cache_dir
    processor = supported_processors()[0]
    library = open_library(find_library(bindings.SOURCE, processor, cache, compiler=compiler))
    assert training_difference(bindings.Kernels(library, processor)) is None
    library = open_library(
        find_library(decoder.SOURCE, processor, cache, flags=decoder.FLAGS, compiler=compiler)
    )
    assert decoding_difference(decoder.check_and_declare(library), processor) is None


@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang compiles for other systems"
)
@pytest.mark.parametrize("source", [bindings.SOURCE, decoder.SOURCE])
@pytest.mark.parametrize("system", ["macos", "windows-gnu", "linux-gnu"])
@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_sources_compile_for_other_systems(
    processor: str, system: str, source: str, tmp_path: Path
) -> None:
    flags = ["-march=x86_64", "-mavx2", "-mfma", "-mf16c"] if processor == "x86_64" else []
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "c++",
        "-target",
        f"{processor}-{system}",
        *FLAGS,
        *flags,
        "-O0",
        "-c",
    ]
    command += [str(build.SOURCES / source), "-o", str(tmp_path / "object")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


class CLonger(ctypes.Structure):
    _fields_ = fields((CMatrix, "qkv"), (ctypes.c_float, "eps"))


CLonger.__name__ = "CMatrix"
MOVED = [
    SimpleNamespace(name=kind.name, value=kind.value + (kind == Activation.RELU))
    for kind in Activation
]
SHORTER = [kind for kind in Kind if kind != Kind.INT4]


def test_libraries_that_differ_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings()
    library, processor = decoder.load_decoder(settings)
    matrix, longer, layer = (ctypes.sizeof(structure) for structure in (CMatrix, CLonger, CLayer))
    for structures, said in (
        (
            [*STRUCTURES, CLonger],
            rf"^sizeof\(Matrix\) is {matrix} in C\+\+ and {longer} in Python$",
        ),
        (set(STRUCTURES) - {CLayer}, rf"^sizeof\(Layer\) is {layer} in C\+\+ and None in Python$"),
    ):
        with pytest.raises(RuntimeError, match=said):
            check_facts(library, *structures)
    for name, numbers, said in (
        ("Activation", MOVED, r"^RELU is 2 in C\+\+ and 3 in Python$"),
        ("Kind", SHORTER, r"^INT4 is 3 in C\+\+ and None in Python$"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(contract, name, numbers)
            with pytest.raises(RuntimeError, match=said):
                decoder.load_decoder(settings)
            with pytest.raises(RuntimeError, match=said):
                bindings.load_kernels(processor.matmul_dtype, settings)


def test_tensor_that_c_would_read_as_something_else_is_refused() -> None:
    for x in (torch.ones(2, 3).double(), torch.ones(2, 3).mT, torch.ones(2, 3, device="meta")):
        with pytest.raises(
            TypeError, match=r"^C reads contiguous torch\.float32 here, and was given "
        ):
            pointer(x, torch.float32)


def test_the_cache_is_its_owner_s_alone(cache: Path) -> None:
    former = os.umask(0)
    try:
        find_library("room/answer.cpp", GENERIC, cache)
    finally:
        os.umask(former)
    assert [folder.stat().st_mode & 0o777 for folder in (cache, cache / "kernels")] == [0o700] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="modes are those of POSIX")
@pytest.mark.parametrize("which", ["gpt", "kernels", "library"])
def test_library_that_others_may_have_written_is_not_loaded(
    which: str, tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "gpt"
    library = find_library("room/answer.cpp", GENERIC, cache)
    path = {"gpt": cache, "kernels": cache / "kernels", "library": library}[which]
    mode = path.stat().st_mode
    remedy = "remove it, or let XDG_CACHE_HOME name a folder of yours"
    for changed in (mode | 0o020, mode | 0o002):
        path.chmod(changed)
        said = rf"^{path} can be written by other users, whose code would run; {remedy}$"
        with pytest.raises(DeviceError, match=said):
            find_library("room/answer.cpp", GENERIC, cache)
    path.chmod(mode)
    assert find_library("room/answer.cpp", GENERIC, cache) == library
    monkeypatch.setattr("gpt.native.cache.ROOT_USER", -1)
    monkeypatch.setattr("gpt.native.cache.os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(
        DeviceError, match=rf"^{cache} belongs to another user, whose code would run; {remedy}$"
    ):
        find_library("room/answer.cpp", GENERIC, cache)


def test_file_called_ziglang_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ziglang.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    assert not any(compiler.is_zig for compiler in find_compilers())


def test_zig_is_told_apart_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1.2 of {name}")
    zig = [compiler for compiler in find_compilers() if compiler.is_zig]
    assert [compiler.version for compiler in zig] == ["ziglang 1.2 of ziglang"]


def not_installed(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)
