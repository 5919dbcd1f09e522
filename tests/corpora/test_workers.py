"""Results come in the order of the texts, errors as they were raised, and no worker outlives its caller."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest

from gpt.corpora import workers
from gpt.corpora.workers import PROGRAM, WorkerLost, map_texts
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.errors import DataError

BYTES = ByteTokenizer()
both = pytest.mark.parametrize("processes", [1, 2])


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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that are started."""
    found: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            found.append(self)

    monkeypatch.setattr(workers.subprocess, "Popen", Recorded)
    return found


def test_workers_end_with_the_caller_and_one_that_is_killed_is_told(started: list[subprocess.Popen[bytes]]) -> None:
    results = map_texts(BYTES, ["a"] * 9, 2)
    next(results)
    assert all(os.getpgid(process.pid) == process.pid for process in started)  # Ctrl-C is not for them
    started[1].kill()
    started[1].wait()
    with pytest.raises(WorkerLost, match=r"ended by signal 9.*smaller data\.workers"):
        list(results)
    assert all(process.returncode is not None for process in started)


def test_a_worker_ends_when_its_input_does() -> None:
    root = str(Path(workers.__file__).parents[2])
    for tokenizer in (b"", (len(b"null") + 5).to_bytes(8, "little") + b"null"):
        command = [sys.executable, "-c", PROGRAM, root]
        result = subprocess.run(command, input=tokenizer, capture_output=True, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
