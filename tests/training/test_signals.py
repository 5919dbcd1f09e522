import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gpt.signals import WATCHED
from gpt.training.signals import Interrupted, SignalWatch

SIGNALS = pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)


@pytest.fixture
def former() -> Iterator[list[int]]:
    """Signals that reached the handlers which were there before."""
    received: list[int] = []
    handlers = {n: signal.signal(n, lambda number, frame: received.append(number)) for n in WATCHED}
    yield received
    for number, handler in handlers.items():
        signal.signal(number, handler)


@SIGNALS
def test_the_first_signal_is_noted_and_raised_once_at_the_next_check(
    former: list[int], number: signal.Signals, exit_code: int
) -> None:
    lines: list[str] = []
    with SignalWatch(lines.append) as watch:
        watch.check()
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match=number.name) as stopped:
            watch.check()
        watch.check()
    assert stopped.value.exit_code == exit_code
    assert lines == [f"{number.name}: saving after this step; send it again to stop at once"]
    assert former == []


@SIGNALS
def test_a_signal_that_follows_at_once_is_an_echo_of_the_first(
    former: list[int], number: signal.Signals, exit_code: int
) -> None:
    with SignalWatch(lambda line: None) as watch:
        for again in (number, number, *WATCHED):
            os.kill(os.getpid(), again)
        with pytest.raises(Interrupted, match=number.name):
            watch.check()
        os.kill(os.getpid(), number)
        watch.check()
    assert former == []


@SIGNALS
def test_a_later_signal_goes_where_it_would_have_gone_without_a_watch(
    former: list[int], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, exit_code: int
) -> None:
    monkeypatch.setattr("gpt.signals.ECHO_SECONDS", 0)
    with SignalWatch(lambda line: None):
        os.kill(os.getpid(), number)
        assert former == []
        for again in WATCHED:
            os.kill(os.getpid(), again)
        assert former == list(WATCHED)


@SIGNALS
def test_after_the_watch_the_former_handlers_are_back(
    former: list[int], number: signal.Signals, exit_code: int
) -> None:
    before = [signal.getsignal(n) for n in WATCHED]
    with suppress(ZeroDivisionError), SignalWatch(lambda line: None):
        assert [signal.getsignal(n) for n in WATCHED] != before
        raise ZeroDivisionError
    assert [signal.getsignal(n) for n in WATCHED] == before
    os.kill(os.getpid(), number)
    assert former == [number]


def test_a_line_that_cannot_be_printed_from_within_another_one_does_not_end_the_run(former: list[int]) -> None:
    def report(line: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    with SignalWatch(report) as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            watch.check()


def test_in_another_thread_a_watch_watches_nothing_and_does_no_harm() -> None:
    before = [signal.getsignal(n) for n in WATCHED]
    seen = []

    def work() -> None:
        with SignalWatch(lambda line: None) as watch:
            watch.check()
            seen.append([signal.getsignal(n) for n in WATCHED])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@SIGNALS
def test_a_signal_that_the_parent_made_ignored_stays_ignored(
    former: list[int], number: signal.Signals, exit_code: int
) -> None:
    signal.signal(number, signal.SIG_IGN)
    with SignalWatch(pytest.fail) as watch:
        os.kill(os.getpid(), number)
        watch.check()
    assert signal.getsignal(number) is signal.SIG_IGN
