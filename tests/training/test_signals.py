import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from gpt.system.signals import WATCHED
from gpt.training.signals import Interrupted, SignalWatch

SIGNALS = pytest.mark.parametrize("number", WATCHED)


@pytest.fixture
def former() -> Iterator[list[int]]:
    """Signals that reached the handlers which were there before."""
    received: list[int] = []
    handlers = {n: signal.signal(n, lambda number, frame: received.append(number)) for n in WATCHED}
    yield received
    for number, handler in handlers.items():
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in WATCHED]


@SIGNALS
def test_the_first_signal_is_raised_once_at_the_next_check_and_echoes_are_not(
    former: list[int], number: signal.Signals
) -> None:
    lines: list[str] = []
    before = handlers()
    with suppress(ZeroDivisionError), SignalWatch(lines.append) as watch:
        watch.check()
        for again in (number, number, *WATCHED):
            os.kill(os.getpid(), again)
        with pytest.raises(Interrupted, match=number.name) as stopped:
            watch.check()
        os.kill(os.getpid(), number)
        watch.check()
        raise ZeroDivisionError
    assert stopped.value.exit_code == 128 + number
    assert lines == [f"{number.name}: saving after this step; send it again to stop at once"]
    assert former == []
    assert handlers() == before
    os.kill(os.getpid(), number)
    assert former == [number]


@SIGNALS
def test_a_later_signal_goes_where_it_would_have_gone_without_a_watch(
    former: list[int], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("gpt.system.signals.ECHO_SECONDS", 0)
    with SignalWatch(lambda line: None):
        os.kill(os.getpid(), number)
        assert former == []
        for again in WATCHED:
            os.kill(os.getpid(), again)
        assert former == list(WATCHED)


def test_a_later_signal_while_the_handlers_are_restored_ends_the_process(
    former: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before the first of them is."""
    ended: list[tuple[int, object]] = []
    restore = signal.signal

    def interrupted(number: int, handler: Any) -> object:
        monkeypatch.setattr(signal, "signal", restore)
        os.kill(os.getpid(), signal.SIGTERM)
        return restore(number, handler)

    monkeypatch.setattr("gpt.system.signals.ECHO_SECONDS", 0)
    monkeypatch.setattr(signal, "raise_signal", lambda number: ended.append((number, signal.getsignal(number))))
    with SignalWatch(lambda line: None):
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(signal, "signal", interrupted)
    assert ended == [(signal.SIGTERM, signal.SIG_DFL)]


def test_a_line_that_cannot_be_printed_from_within_another_one_does_not_end_the_run(former: list[int]) -> None:
    def report(line: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    with SignalWatch(report) as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            watch.check()


def test_in_another_thread_a_watch_watches_nothing_and_does_no_harm() -> None:
    before, seen = handlers(), []

    def work() -> None:
        with SignalWatch(lambda line: None) as watch:
            watch.check()
            seen.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@SIGNALS
def test_a_signal_that_the_parent_made_ignored_stays_ignored(former: list[int], number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with SignalWatch(pytest.fail) as watch:
        os.kill(os.getpid(), number)
        watch.check()
    assert signal.getsignal(number) is signal.SIG_IGN
