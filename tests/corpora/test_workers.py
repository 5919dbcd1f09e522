"""Results come in the order of the texts, errors as they were raised, and no worker outlives its caller."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import count, islice, repeat
from pathlib import Path

import numpy as np
import pytest

from gpt.corpora.workers import WorkerLost, map_texts
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.errors import DataError
from patience import PATIENCE

BYTES = ByteTokenizer()
both = pytest.mark.parametrize("processes", [1, 2])
UNGUARDED = """
import multiprocessing
from gpt.corpora.workers import map_texts
from gpt.data.tokenizers import ByteTokenizer
results = map_texts(ByteTokenizer(), ["a"] * 9, 2)
print(next(results), *(process.pid for process in multiprocessing.active_children()), flush=True)
input()
"""


@both
def test_results_come_in_order(processes: int) -> None:
    for texts in (["a", "", "bc", "é", "d" * 1_000_000], ["x"], []):
        assert list(map_texts(BYTES, texts, processes)) == [text.encode() for text in texts]
    assert list(map_texts(CharTokenizer("abc"), ["cab"], processes)) == [bytes((2, 0, 1))]
    (codes,) = map_texts(None, ["aé\ud800a"], processes)
    assert np.frombuffer(codes, "<u4").tolist() == [97, 0xE9, 0xD800]


def test_only_as_many_texts_are_taken_as_there_are_workers() -> None:
    taken = count()
    results = map_texts(BYTES, (str(next(taken)) for _ in range(100)), 2)
    assert list(islice(results, 2)) == [b"0", b"1"]
    assert next(taken) <= 5
    results.close()


@both
def test_an_error_of_the_user_is_raised_here(processes: int) -> None:
    results = map_texts(BYTES, ["a", "\ud800", "b"], processes)
    assert next(results) == b"a"
    with pytest.raises(DataError, match="at 0 is not a character"):
        next(results)


def test_a_worker_that_is_killed_is_told_and_ctrl_c_is_not_for_them() -> None:
    results = map_texts(BYTES, repeat("a"), 2)
    next(results)
    one, other = multiprocessing.active_children()
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(other.pid or 0, number)
    assert next(results) == b"a"
    one.kill()
    with pytest.raises(WorkerLost, match=r"worker process ended.*smaller data\.workers"):
        list(results)
    assert multiprocessing.active_children() == []


def test_workers_import_no_main_module_and_end_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(UNGUARDED)
    command = [sys.executable, str(tmp_path / "main.py")]
    caller = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    first, *workers = caller.stdout.readline().split()
    assert (first, len(workers)) == ("b'a'", 2)
    caller.kill()
    caller.communicate()
    end = time.monotonic() + PATIENCE
    while any(_runs(int(worker)) for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or ") Z " not in status.read_text()
