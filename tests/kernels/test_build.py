"""Compiled libraries: when they are made, that what is kept is what was made, and what a user is told."""

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
from typing import Any

import pytest
import torch

from gpt.kernels import __main__ as setup
from gpt.kernels import build
from gpt.kernels.build import CachedLibrary, find_library, open_library
from gpt.kernels.compiler import FLAGS, Compiler, find_compiler, find_compilers, system_flags
from gpt.system.errors import DeviceError
from gpt.system.processor import GENERIC, supported_processors

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


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
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every call of the compiler that makes something."""
    calls: list[list[str]] = []
    run: Callable[..., Any] = subprocess.run

    def watched(command: list[str], **options: Any) -> Any:
        if "-o" in command:
            calls.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    return calls


@pytest.fixture
def cache(tmp_path: Path, sources: Path) -> Path:
    return tmp_path / "cache"


def answer(cache: Path, **options: Any) -> int:
    return open_library(find_library("room/answer.cpp", GENERIC, cache, **options)).answer()


def stored(cache: Path, suffix: str) -> list[Path]:
    return sorted(path for path in (cache / "kernels").iterdir() if path.suffix == suffix)


# --- what is compiled, and when -------------------------------------------------------------------


def test_a_source_is_compiled_once_with_a_line_before_and_one_after(cache: Path, compilations: list[list[str]]) -> None:
    lines: list[tuple[int, str]] = []
    for _ in range(2):
        assert answer(cache, report=lambda line: lines.append((len(compilations), line))) == 42
    (before, start), (after, end) = lines
    assert (before, after) == (0, 1)
    assert start.startswith("compiling room/answer.cpp for generic: once, by ")
    assert end.startswith("compiled room/answer.cpp for generic in ")
    (command,) = compilations
    made = Path(command[command.index("-o") + 1])
    assert made.parent.parent == cache / "kernels"  # renamed when it is complete, so that nobody loads the half of one
    assert not made.exists()
    (library,) = stored(cache, ".so")
    assert library.name.startswith("answer-")


def test_a_changed_source_header_macro_class_or_compiler_is_compiled_anew(
    cache: Path, sources: Path, compilations: list[list[str]]
) -> None:
    """Each beside those that were there: another checkout may still want them."""
    answer(cache)
    (sources / "room" / "answer.cpp").write_text(SOURCE.replace("NUMBER;", "NUMBER + 1;"), encoding="utf-8")
    assert answer(cache) == 43
    (sources / "number.h").write_text("#define NUMBER 7\n", encoding="utf-8")
    assert answer(cache) == 8
    assert answer(cache, flags=["-DMACRO"]) == 8
    find_library("room/answer.cpp", replace(GENERIC, macros=(*GENERIC.macros, "-O1")), cache)
    compiler = find_compiler()
    assert compiler is not None
    assert answer(cache, compiler=replace(compiler, version="newer")) == 8
    assert len(compilations) == len(stored(cache, ".so")) == 6


def test_a_wheel_brings_its_libraries_until_a_source_is_edited_or_a_compiler_is_asked_for(
    cache: Path, sources: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PREBUILT", sources.parent / "prebuilt")
    answer(cache)
    (library,) = stored(cache, ".so")
    build.PREBUILT.mkdir()
    CachedLibrary(build.PREBUILT, build.prebuilt_key("room/answer.cpp", GENERIC)).store(library)
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    (sources / ".DS_Store").touch()  # by macOS, when a folder is looked at
    (sources / "room/._answer.cpp").touch()
    assert answer(cache) == 42
    (sources / "number.h").write_text("#define NUMBER 7\n", encoding="utf-8")
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler was found"):
        answer(cache)
    assert answer(cache, compiler=find_compiler()) == 7
    assert len(compilations) == 2


def test_the_command_line_names_the_class_the_type_of_matmuls_and_the_contraction_of_sums(
    cache: Path, compilations: list[list[str]]
) -> None:
    for processor in supported_processors():
        find_library("room/answer.cpp", processor, cache)
        assert set(processor.compiler_flags) <= set(compilations[-1])
        assert ("-DGPT_BFLOAT16" in compilations[-1]) == (processor.matmul_dtype == torch.bfloat16)
        assert "-ffp-contract=fast" in compilations[-1]
        assert "-march=native" not in compilations[-1]


# --- what the user is told ------------------------------------------------------------------------


def test_a_full_disk_is_an_error_of_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(DeviceError, match=r"^room/answer\.cpp cannot be compiled: \[Errno 28\] No space left"):
        answer(cache)


def test_a_library_that_cannot_be_loaded_is_an_error_of_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder from which nothing may be executed, for example."""
    monkeypatch.setattr(CachedLibrary, "find", lambda self: self.folder / "not a library")
    with pytest.raises(
        DeviceError, match=r"not a library cannot be loaded: [^\n]*; remove it to have it compiled again$"
    ):
        answer(cache)


def test_a_compilation_that_failed_says_where_its_messages_are_and_is_tried_again(cache: Path, sources: Path) -> None:
    (sources / "number.h").write_text("#error nonsense\n", encoding="utf-8")
    with pytest.raises(DeviceError, match=r"the C\+\+ compiler failed on room/answer\.cpp[^\n]*$") as caught:
        answer(cache)
    (log,) = (cache / "kernels").iterdir()  # no half-made library beside it
    assert str(caught.value).endswith(str(log))
    assert "number.h:1" in log.read_text(encoding="utf-8")
    (sources / "number.h").write_text("#define NUMBER 7\n", encoding="utf-8")
    assert answer(cache) == 7


def test_a_compiler_that_does_not_end_is_an_error_of_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SECONDS", 0.01)
    with pytest.raises(DeviceError, match=r"^the C\+\+ compiler did not end on room/answer\.cpp within 0\.01 s$"):
        answer(cache)


def test_a_library_shows_its_interface_only_and_everyone_may_read_it(cache: Path) -> None:
    library = find_library("room/answer.cpp", GENERIC, cache)
    assert not hasattr(open_library(library), "_Z6hiddenv")
    assert library.stat().st_mode & 0o777 == 0o644


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_library_is_found_before_it_is_loaded_and_made_anew(cache: Path) -> None:
    """It is not loaded here: a process that has loaded one that is cut later ends by a bus error."""
    lines: list[str] = []

    def load() -> Path:
        return find_library("room/answer.cpp", GENERIC, cache, lines.append)

    whole = load().read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b""):
        load().write_bytes(damaged)
        lines.clear()
        assert load().read_bytes() == whole
        assert load().read_bytes() == whole
        assert len(lines) == 2


# --- where it is kept, and by how many ------------------------------------------------------------


def test_a_library_in_a_cache_that_cannot_be_written_is_used(
    cache: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(cache)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: pytest.fail("it is written to"))
    assert answer(cache) == 42
    assert len(compilations) == 1


def _exit_with_answer(cache: Path) -> None:
    os._exit(answer(cache))


def test_threads_that_build_at_once_all_succeed(cache: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: answer(cache), range(3))) == [42] * 3


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_processes_that_build_at_once_all_succeed(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_exit_with_answer, args=(cache,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [42, 42, 42]


def test_of_two_different_libraries_stored_at_once_both_stay_whole(tmp_path: Path) -> None:
    """Compilers need not write the same bytes twice."""
    stored = []
    for content in (b"one", b"two"):
        (tmp_path / "built").write_bytes(content)
        stored.append(CachedLibrary(tmp_path, "key").store(tmp_path / "built"))
    assert [library.read_bytes() for library in stored] == [b"one", b"two"]
    stored[0].write_bytes(b"damaged")
    assert CachedLibrary(tmp_path, "key").find() == stored[1]


# --- compilers and systems ------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a program onto the path, which has no other; ziglang is not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
        return folder / name

    return put


def test_a_compiler_that_only_says_how_to_get_one_is_passed_over(tools: Callable[[str, str], Path]) -> None:
    """As on a Mac without its developer tools."""
    tools("c++", "echo xcode-select: note: no developer tools were found; exit 1")
    assert find_compiler() is None
    path = tools("clang++", "echo clang version 14")
    assert find_compiler() == Compiler((str(path),), "clang version 14\n")


@pytest.mark.parametrize(("preferred", "names"), [("g++", ["c++", "clang++"]), ("clang++", ["c++", "g++"])])
def test_a_compiler_of_two_names_is_listed_once_by_the_one_that_comes_first(
    tools: Callable[[str, str], Path], preferred: str, names: list[str]
) -> None:
    paths = {name: tools(name, f"echo {name}") for name in ("g++", "clang++")}
    paths[preferred].with_name("c++").symlink_to(paths[preferred])
    assert [compiler.name for compiler in find_compilers()] == names


def test_without_any_the_one_of_the_package_index_is_used(
    tools: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.17.1")
    compiler = find_compiler()
    assert compiler is not None
    assert (compiler.name, compiler.command) == ("zig", (sys.executable, "-m", "ziglang", "c++"))
    assert "-march=x86_64" in compiler.arguments(["-march=x86-64"])  # its own spelling
    tools("g++", "echo 12")
    assert find_compiler() != compiler


def test_flags_of_systems() -> None:
    """None is for OpenMP: compilers bring another one than torch's, or none; `parallel.h` calls torch's."""
    for platform in ("linux", "darwin"):
        assert system_flags(platform, is_zig=False) == system_flags(platform, is_zig=True) == ("-fPIC", "-pthread")
    assert system_flags("win32", is_zig=False) == ("-static",)  # all code is position independent there
    assert system_flags("win32", is_zig=True) == ()  # with it, zig makes an archive instead of a library
    assert not any("openmp" in flag for flag in FLAGS)


# --- all of them beforehand -----------------------------------------------------------------------


def test_after_setup_no_command_compiles(
    tmp_path: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quickly = tuple(flag.replace("-O3", "-O0") for flag in FLAGS)
    monkeypatch.setattr("gpt.kernels.compiler.FLAGS", quickly)
    assert setup.main() == 0
    made = {Path(argument) for command in compilations for argument in command if argument.endswith(".cpp")}
    assert made == set(build.SOURCES.rglob("*.cpp"))
    assert capsys.readouterr().out.count("\ncompiled ") == len(made)
    assert setup.main() == 0
    assert len(compilations) == len(made)
    assert capsys.readouterr() == ("", "")


def test_setup_goes_on_without_a_compiler_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert setup.main() == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no compiled kernels: no C++ compiler was found; install ")
    assert line.endswith("pip install 'glassgpt[compiler]'")
    assert list(tmp_path.iterdir()) == []
