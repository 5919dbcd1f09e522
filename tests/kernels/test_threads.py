"""The pool of threads, which works where torch brings no OpenMP library to share."""

import _ctypes
import ctypes
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native_support import needs_compiler

from gpt.environment import read_settings
from gpt.kernels.build import SOURCES, load_library
from gpt.processor import GENERIC

pytestmark = [pytest.mark.compiler, needs_compiler]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    source, flags = str(Path(__file__).parent / "threads.cpp"), ("-I", str(SOURCES), "-DGPT_OWN_THREADS")
    library = load_library(source, GENERIC, read_settings().cache_dir, flags=flags)
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
