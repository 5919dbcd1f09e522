"""Results come in the order of the items, errors as they were raised, and no worker outlives its caller."""

import os
import signal
from collections.abc import Iterator
from itertools import count, islice
from operator import neg

import pytest

from gpt.data.tokenizers import require_characters
from gpt.data.workers import WorkerLost, parallel_map
from gpt.errors import DataError


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order(processes: int) -> None:
    for items in (range(7), range(1), range(0)):
        assert list(parallel_map(neg, items, processes)) == [-item for item in items]


def test_only_as_many_items_are_taken_as_there_are_workers() -> None:
    taken = count()
    results = parallel_map(neg, (next(taken) for _ in range(100)), 2)
    assert list(islice(results, 2)) == [0, -1]
    assert next(taken) <= 5
    results.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_the_user_is_raised_here(processes: int) -> None:
    results = parallel_map(require_characters, ["a", "\ud800", "b"], processes)
    assert next(results) == b"a"
    with pytest.raises(DataError, match="at 0 is not a character"):
        next(results)


def test_a_worker_that_is_killed_is_told() -> None:
    with pytest.raises(WorkerLost, match=r"ended by signal 9.*smaller data\.workers"):
        list(parallel_map(signal.raise_signal, [signal.SIGKILL, signal.SIGKILL, signal.SIGKILL], 2))


def test_workers_end_with_the_caller() -> None:
    def pids() -> Iterator[int]:
        while True:
            yield 0

    results = parallel_map(os.getpgid, pids(), 2)
    group = next(results)
    assert group != os.getpgid(0)  # Ctrl-C does not reach them
    results.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)
