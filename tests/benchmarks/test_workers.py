from pathlib import Path

import pytest

from benchmarks.workers import Job, Worker
from gpt.errors import GPTError


def test_a_process_takes_turns_until_it_dies(workplace: Path) -> None:
    with Worker(Job("mine", "gpt", "tiny.yaml", ["run.seed=3"], warmup=1, steps=2)) as worker:
        answer = worker.take_turn()
        assert len(answer.milliseconds) == 2
        assert (answer.dtype, answer.blocks) == ("float32", "eager")
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(GPTError, match=r"^mine: .* ended with -9: "):
            worker.take_turn()


def test_a_mistake_in_its_job_is_its_only_answer(workplace: Path) -> None:
    with pytest.raises(GPTError, match=r"^mine: nowhere.yaml: no such configuration file"):
        Worker(Job("mine", "gpt", "nowhere.yaml"))
