import errno
import multiprocessing
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt.errors import DeviceError
from gpt.kernels import build
from gpt.kernels.build import find_compiler, load_library

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

SOURCE = '#include "number.h"\nextern "C" int answer() { return NUMBER; }\n'


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one source and its header, in the place of the package's."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.cpp").write_text(SOURCE, encoding="utf-8")
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
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "native").iterdir())


def test_a_source_is_compiled_once(cache: Path, compilations: list[list[str]]) -> None:
    assert load_library("answer", cache).answer() == 42
    assert load_library("answer", cache).answer() == 42
    (command,) = compilations
    made = Path(command[command.index("-o") + 1])
    assert made.parent == cache / "native"  # renamed when it is complete, so that nobody loads the half of one
    assert not made.exists()
    (name,) = files(cache)
    assert name.startswith("answer-")
    assert name.endswith(".so")


def test_a_changed_source_or_header_or_flag_or_machine_is_compiled_anew(
    cache: Path, sources: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each beside those that were there: another checkout may still want them."""
    load_library("answer", cache)
    (sources / "answer.cpp").write_text(SOURCE.replace("NUMBER;", "NUMBER + 1;"), encoding="utf-8")
    assert load_library("answer", cache).answer() == 43
    (sources / "number.h").write_text("#define NUMBER 7\n", encoding="utf-8")
    assert load_library("answer", cache).answer() == 8
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DNUMBER_OF_FLAGS"))
    assert load_library("answer", cache).answer() == 8
    monkeypatch.setattr(build, "_processor", lambda: b"flags: another")
    assert load_library("answer", cache).answer() == 8
    assert len(compilations) == len(files(cache)) == 5


def test_what_the_compiler_says_is_kept_in_a_log_that_the_error_names(cache: Path, sources: Path) -> None:
    (sources / "answer.cpp").write_text("int answer( { nonsense\n", encoding="utf-8")
    with pytest.raises(DeviceError, match=r"the C\+\+ compiler failed on answer\.cpp") as caught:
        load_library("answer", cache)
    assert "\n" not in str(caught.value)
    (name,) = files(cache)  # no half-made library beside it
    assert str(caught.value).endswith(str(cache / "native" / name))
    assert "answer.cpp:1" in (cache / "native" / name).read_text(encoding="utf-8")


def test_a_source_that_failed_is_tried_again(cache: Path, sources: Path) -> None:
    (sources / "number.h").unlink()
    with pytest.raises(DeviceError):
        load_library("answer", cache)
    (sources / "number.h").write_text("#define NUMBER 42\n", encoding="utf-8")
    assert load_library("answer", cache).answer() == 42


def test_without_a_compiler_the_error_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match=r"^no C\+\+ compiler was found \(c\+\+, g\+\+ or clang\+\+\)$"):
        load_library("answer", cache)
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (cache / "native").mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != cache / "native" and access(path, mode))
    assert load_library("answer", cache).answer() == 42
    assert files(cache) == []
    (folder,) = tmp_path.glob("gpt-native-*")
    assert [path.suffix for path in folder.iterdir()] == [".so"]


def test_a_library_in_a_cache_that_cannot_be_written_is_used(
    cache: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library("answer", cache)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    assert load_library("answer", cache).answer() == 42
    assert len(compilations) == 1


def test_a_full_disk_is_an_error_of_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(DeviceError, match=r"^answer\.cpp cannot be compiled: \[Errno 28\] No space left on device$"):
        load_library("answer", cache)


def test_a_file_in_the_place_of_the_cache_is_no_harm(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache.write_text("mine", encoding="utf-8")
    assert load_library("answer", cache).answer() == 42
    assert cache.read_text(encoding="utf-8") == "mine"


def test_threads_that_build_at_once_all_succeed(cache: Path) -> None:
    answers: list[int] = []
    barrier = threading.Barrier(3)

    def work() -> None:
        barrier.wait()
        answers.append(load_library("answer", cache).answer())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [42, 42, 42]
    assert len(files(cache)) == 1


def _exit_with_answer(cache: Path) -> None:
    os._exit(load_library("answer", cache).answer())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_processes_that_build_at_once_all_succeed(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_exit_with_answer, args=(cache,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [42, 42]
    assert len(files(cache)) == 1


def test_a_library_that_cannot_be_loaded_is_an_error_of_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file, or a home folder from which nothing may be executed."""
    monkeypatch.setattr(build, "_compile", lambda command, source, library: library.write_bytes(b"not a library"))
    with pytest.raises(DeviceError) as caught:
        load_library("answer", cache)
    assert "\n" not in str(caught.value)
