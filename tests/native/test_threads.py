"""The threads of the kernels, which take tasks in phases."""

import _ctypes
import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from native_support import needs_compiler

from gpt.native.build import SOURCES, find_library, open_library
from gpt.system.environment import read_settings
from gpt.system.processor import GENERIC
from programs import find_program, give_up

pytestmark = needs_compiler
SOURCE = Path(__file__).with_name("threads.cpp")
FLAGS = ("-I", str(SOURCES))


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    library = open_library(
        find_library(str(SOURCE), GENERIC, read_settings().cache_dir, flags=FLAGS)
    )
    library.sum_below.restype = ctypes.c_int64
    library.count_executed.restype = ctypes.c_int64
    return library


def all_right(library: ctypes.CDLL) -> bool:
    """Call with more threads and fewer, and with one phase or several."""
    cases = product((1, 1000), (2, 4, 1, 3), (1, 6))
    for n, threads, phases in [*cases] * 20:
        if library.sum_below(n, threads, phases) != n * (n - 1) // 2:
            return False
    return True


def test_several_python_threads_call_at_once(library: ctypes.CDLL) -> None:
    assert all_right(library)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: all_right(library), range(6))) == [True] * 6


def test_more_tasks_than_the_number_of_the_next_task_has_bits(library: ctypes.CDLL) -> None:
    for tasks in (2**22 - 1, 2**22, 2**22 + 5):
        assert library.count_executed(tasks, 2) == tasks


def fork(library: ctypes.CDLL) -> bool:
    """Call from threads of its own, which a fork does not take along."""
    return all_right(library)


def lack_memory(library: ctypes.CDLL) -> bool:
    """Make do with the threads that can be started."""
    import resource

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**20, mapped + 2**20))  # less than a stack
    return library.sum_below(1000, 100, 5) == 499500 and all_right(library)


def close(library: ctypes.CDLL) -> bool:
    """Call a library that was closed, and stays where its threads are."""
    assert all_right(library)
    _ctypes.dlclose(library._handle)
    return all_right(library)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked here"
)
@pytest.mark.parametrize("work", [fork, close, *([lack_memory] if sys.platform == "linux" else [])])
def test_threads_of_a_forked_process(
    library: ctypes.CDLL, work: Callable[[ctypes.CDLL], bool]
) -> None:
    assert all_right(library)
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(not work(library)))
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


@pytest.mark.skipif(
    sys.platform != "linux", reason="the sanitizer of threads is tried on Linux only"
)
def test_thread_sanitizer_finds_no_race(tmp_path: Path) -> None:
    flags = [*FLAGS, "-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", "-DRACING"]
    command = [
        find_program("g++", "g++"),
        *flags,
        str(SOURCE),
        "-o",
        str(tmp_path / "racing"),
        "-ldl",
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        give_up(f"this test needs the sanitizer of threads of g++: {built.stderr}")
    done = subprocess.run([tmp_path / "racing"], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer of threads does not know this kernel's addresses")
    assert (done.returncode, done.stderr) == (0, "")
