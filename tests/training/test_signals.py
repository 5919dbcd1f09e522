import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gpt.training.signals import Interrupted, SignalWatch

SIGNALS = pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)


@pytest.fixture
def former() -> Iterator[list[int]]:
    """Signals that reached the handlers which were there before."""
    received: list[int] = []
    handlers = {n: signal.signal(n, lambda number, frame: received.append(number)) for n in SignalWatch.WATCHED}
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
def test_the_second_signal_goes_where_it_would_have_gone_without_a_watch(
    former: list[int], number: signal.Signals, exit_code: int
) -> None:
    with SignalWatch(lambda line: None):
        os.kill(os.getpid(), number)
        assert former == []
        for again in SignalWatch.WATCHED:
            os.kill(os.getpid(), again)
        assert former == list(SignalWatch.WATCHED)


@SIGNALS
def test_after_the_watch_the_former_handlers_are_back(
    former: list[int], number: signal.Signals, exit_code: int
) -> None:
    before = [signal.getsignal(n) for n in SignalWatch.WATCHED]
    with suppress(ZeroDivisionError), SignalWatch(lambda line: None):
        assert [signal.getsignal(n) for n in SignalWatch.WATCHED] != before
        raise ZeroDivisionError
    assert [signal.getsignal(n) for n in SignalWatch.WATCHED] == before
    os.kill(os.getpid(), number)
    assert former == [number]


def test_in_another_thread_a_watch_watches_nothing_and_does_no_harm() -> None:
    before = [signal.getsignal(n) for n in SignalWatch.WATCHED]
    seen = []

    def work() -> None:
        with SignalWatch(lambda line: None) as watch:
            watch.check()
            seen.append([signal.getsignal(n) for n in SignalWatch.WATCHED])

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
