"""Other processes: how long they take, and how they fail."""

import sys
from pathlib import Path

import pytest

from benchmarks.processes import json_process, time_process
from gpt.system.errors import GPTError

ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps({'got': json.loads(line)}), flush=True)"


def test_a_process_is_timed_and_its_evaluations_are_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    command = [
        sys.executable,
        "-c",
        "import time; print('step 1: val loss 2\\nstep 2'); time.sleep(0.3); print('other')",
    ]
    seconds, lines = time_process(command, tmp_path, report=shown.append)
    assert shown == ["  step 1: val loss 2"]
    assert [line.text for line in lines] == ["step 1: val loss 2", "step 2", "other"]
    assert 0 < lines[0].seconds <= lines[2].seconds - 0.1 < seconds


def test_a_failure_is_one_line_with_the_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('a'); sys.exit('error: no room')"]
    with pytest.raises(GPTError, match=r"ended with 1: no room$"):
        time_process(command, tmp_path)
    with (
        json_process("mine", [*command[:2], "import sys; sys.exit('error: no room')"]) as ask,
        pytest.raises(GPTError, match=r"^mine: .* no room$"),
    ):
        ask()


def test_a_process_is_asked_until_it_answers_with_an_error() -> None:
    with json_process("mine", [sys.executable, "-c", ECHO]) as ask:
        assert ask(do="x") == {"got": {"do": "x"}}
    answer = "import json; input(); print(json.dumps({'error': 'a mistake'}))"
    with json_process("mine", [sys.executable, "-c", answer]) as ask, pytest.raises(GPTError, match="mine: a mistake"):
        ask()
