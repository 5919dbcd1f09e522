from typing import Any

from benchmarks.turns import Turns, peak_resident_bytes, read_status, resident_bytes


def test_steps_are_timed_and_the_wait_between_turns_is_not() -> None:
    now = 0.0
    answers: list[dict[str, Any]] = []

    def ask(content: dict[str, Any]) -> bool:
        nonlocal now
        answers.append(content)
        now += 100  # others take their turns
        return len(answers) < 3

    turns = Turns(1, 2, ask, {"who": "me"}, lambda: None, clock=lambda: now)
    steps = 0
    while True:
        steps += 1
        now += steps
        if not turns.step_done():
            break
    assert [answer["milliseconds"] for answer in answers] == [[1000], [2000, 3000], [4000, 5000]]
    assert answers[0]["who"] == "me"


def test_memory_is_read_from_the_status() -> None:
    assert read_status("VmHWM:\t  20 kB\nVmRSS:\t  10 kB\n", "VmRSS") == 10240
    assert read_status("Name: x\n", "VmRSS") == 0


def test_the_peak_is_no_less_than_what_is_there() -> None:
    assert peak_resident_bytes() >= resident_bytes() * 0.99
