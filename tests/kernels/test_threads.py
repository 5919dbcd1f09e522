"""The pool of threads, which works where torch brings no OpenMP library to share."""

import _ctypes
import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native_support import needs_compiler

from gpt.kernels.build import SOURCES, find_library, open_library
from gpt.system.environment import read_settings
from gpt.system.processor import GENERIC
from programs import find_program, give_up

pytestmark = [pytest.mark.compiler, needs_compiler]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    source, flags = str(Path(__file__).parent / "threads.cpp"), ("-I", str(SOURCES), "-DGPT_OWN_THREADS")
    library = open_library(find_library(source, GENERIC, read_settings().cache_dir, flags=flags))
    library.sum_below.restype = ctypes.c_int64
    return library


def all_right(library: ctypes.CDLL) -> bool:
    """Call with more threads and fewer, with and without barriers."""
    cases = [(n, threads, rounds) for n in (1, 1000) for threads in (2, 4, 1, 3) for rounds in (0, 5)] * 20
    return all(library.sum_below(*case) == case[0] * (case[0] - 1) // 2 for case in cases)


def test_calls_with_different_numbers_of_threads(library: ctypes.CDLL) -> None:
    assert all_right(library)


def test_several_python_threads_call_at_once(library: ctypes.CDLL) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: all_right(library), range(6))) == [True] * 6


def in_a_child(work: Callable[[], bool]) -> int | None:
    """Return the exit code of a forked process that ends without cleaning up, 0 if the work returns true."""
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(not work()))
    child.start()
    child.join(60)
    child.kill()
    return child.exitcode


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_a_forked_process_starts_threads_of_its_own(library: ctypes.CDLL) -> None:
    assert all_right(library)
    assert in_a_child(lambda: all_right(library)) == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux bounds what a process may map")
def test_a_call_makes_do_with_the_threads_that_can_be_started(library: ctypes.CDLL) -> None:
    def work() -> bool:
        import resource

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**20, mapped + 2**20))  # less than a stack
        return library.sum_below(1000, 100, 5) == 499500 and all_right(library)

    assert in_a_child(work) == 0


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here")
def test_a_closed_library_stays_where_its_threads_are(library: ctypes.CDLL) -> None:
    def work() -> bool:
        assert all_right(library)
        _ctypes.dlclose(library._handle)
        return all_right(library)

    assert in_a_child(work) == 0


RACING = """
#include "parallel.h"

static void call() {
    for (int i = 0; i < 400; i++) {
        int parts[4] = {}, sums[4] = {};
        parallel(1 + i % 4, [&](const Worker& w) {
            parts[w.index] = 1;
            w.wait();
            for (int part : parts) sums[w.index] += part;
            w.wait();
            parts[w.index] = i;
        });
        if (sums[0] < 1 || parts[0] != i) __builtin_trap();
    }
}

int main() {
    std::thread other(call);
    call();
    other.join();
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer of threads is tried on Linux only")
def test_thread_sanitizer_finds_no_race(tmp_path: Path) -> None:
    program = tmp_path / "racing"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", "-DGPT_OWN_THREADS", "-I", str(SOURCES)]
    program.with_suffix(".cpp").write_text(RACING, encoding="utf-8")
    command = [find_program("g++", "g++"), *flags, f"{program}.cpp", "-o", str(program), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        give_up(f"this test needs the sanitizer of threads of g++: {built.stderr}")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer of threads does not know this kernel's addresses")
    assert (done.returncode, done.stderr) == (0, "")
