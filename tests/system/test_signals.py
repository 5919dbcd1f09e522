"""Signals that stop a command."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt.system.signals import WATCHED, Stopped, end_children, unwinding
from patience import PATIENCE


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


@pytest.mark.parametrize(
    ("killed_by", "program"),
    [
        (
            signal.SIGHUP,  # a later signal than the first
            "signals.ECHO_SECONDS = 0\n"
            "with signals.unwinding():\n"
            "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
            "    finally:\n        os.kill(os.getpid(), signal.SIGHUP)\n        print('not reached')\n",
        ),
        (
            signal.SIGTERM,  # where Python ignores exceptions
            "class Resource:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
            "with signals.unwinding():\n    Resource()\n    print('not reached')\n",
        ),
        (
            signal.SIGINT,  # during an import, which may swallow exceptions
            "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
            "with signals.unwinding():\n    import swallows\n    print('not reached')\n",
        ),
    ],
)
def test_a_signal_kills_where_it_cannot_unwind(killed_by: int, program: str, tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    )
    imports = f"import os, signal, sys\nfrom gpt.system import signals\nsys.path.insert(0, {str(tmp_path)!r})\n"
    ended = subprocess.run([sys.executable, "-c", imports + program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-killed_by, "", "")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "own"])
def test_a_signal_that_is_ignored_or_handled_is_left_alone(handler) -> None:
    signal.signal(signal.SIGHUP, handler)
    with unwinding():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is handler


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are listed by Linux only")
def test_children_remove_their_files_and_end_but_not_other_sessions(tmp_path: Path) -> None:
    file = tmp_path / "temporary"
    script = f"trap 'sleep 0.1; rm {file}; exit' TERM; touch {file}; sleep 600 & echo begun; wait"
    child = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        end_children()
        child.kill()
        assert child.stdout.read() == ""  # until the grandchild, which holds the pipe too, has ended
        assert child.wait(PATIENCE) is not None
        assert not file.exists()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
