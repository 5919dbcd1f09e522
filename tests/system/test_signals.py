"""Signals that stop a command."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gpt.system.signals import WATCHED, Stopped, unwinding


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in WATCHED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", WATCHED)
def test_the_first_signal_unwinds_and_its_echo_is_nothing(number: int) -> None:
    cleaned = []
    with pytest.raises(Stopped) as stopped, unwinding():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            cleaned.append(number)
    assert stopped.value.code == 128 + number
    assert cleaned == [number]
    assert [signal.getsignal(n) for n in WATCHED] == [signal.SIG_DFL] * len(WATCHED)


def test_a_signal_is_not_hidden_by_an_error_of_what_cleans_up() -> None:
    def fail(prepare: Callable[[], object]) -> None:
        try:
            prepare()
            prepared = True
        finally:
            print(prepared)

    with pytest.raises(Stopped) as stopped, unwinding():
        fail(lambda: signal.raise_signal(signal.SIGTERM))
    assert stopped.value.code == 143
    with pytest.raises(UnboundLocalError), unwinding():
        fail(lambda: 1 // 0)


def test_a_later_signal_kills() -> None:
    program = (
        "import os, signal\nfrom gpt.system import signals\nsignals.ECHO_SECONDS = 0\n"
        "with signals.unwinding():\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n        os.kill(os.getpid(), signal.SIGHUP)\n        print('not reached')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGHUP, "", "")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "own"])
def test_a_signal_that_is_ignored_or_handled_is_left_alone(handler) -> None:
    signal.signal(signal.SIGHUP, handler)
    with unwinding():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is handler
