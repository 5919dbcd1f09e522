"""Results come in the order of the texts, errors as they were raised, and no worker outlives its caller."""

import os
import subprocess
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pytest

from gpt.corpora import workers
from gpt.corpora.tasks import Encode, FindCharacters, task_from_dict
from gpt.corpora.workers import WorkerLost, parallel_map
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer
from gpt.errors import DataError

BYTES = Encode(ByteTokenizer())


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order(processes: int) -> None:
    for texts in (["a", "", "bc", "é", "d" * 1_000_000], ["x"], []):
        assert list(parallel_map(BYTES, texts, processes)) == [text.encode() for text in texts]


def test_a_task_survives_its_description() -> None:
    encode = task_from_dict(Encode(CharTokenizer("abc")).to_dict())
    assert encode("cab") == bytes((2, 0, 1))
    assert np.frombuffer(task_from_dict(FindCharacters().to_dict())("aé\ud800a"), "<u4").tolist() == [97, 0xE9, 0xD800]


def test_only_as_many_texts_are_taken_as_there_are_workers() -> None:
    taken = count()
    results = parallel_map(BYTES, (str(next(taken)) for _ in range(100)), 2)
    assert list(islice(results, 2)) == [b"0", b"1"]
    assert next(taken) <= 5
    results.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_the_user_is_raised_here(processes: int) -> None:
    results = parallel_map(BYTES, ["a", "\ud800", "b"], processes)
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


def test_a_worker_that_is_killed_is_told(started: list[subprocess.Popen[bytes]]) -> None:
    results = parallel_map(BYTES, ["a"] * 9, 2)
    next(results)
    for process in started:
        process.kill()
        process.wait()
    with pytest.raises(WorkerLost, match=r"ended by signal 9.*smaller data\.workers"):
        list(results)


def test_workers_end_with_the_caller_and_ctrl_c_is_not_for_them(started: list[subprocess.Popen[bytes]]) -> None:
    results = parallel_map(BYTES, ["a"] * 9, 2)
    next(results)
    assert all(os.getpgid(process.pid) == process.pid for process in started)
    results.close()
    assert all(process.returncode is not None for process in started)


def test_a_worker_ends_when_its_input_does() -> None:
    for task in (b"", (len(b"{}") + 5).to_bytes(8, "little") + b"{}"):
        result = subprocess.run(
            [*(workers.sys.executable, "-c", workers.PROGRAM), str(workers.Path(workers.__file__).parents[2])],
            input=task,
            capture_output=True,
            check=False,
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
