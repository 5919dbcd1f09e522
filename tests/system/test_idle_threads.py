"""What a command finds out about other processes before torch is loaded, and what it then sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.cli import command
from gpt.system import idle_threads
from gpt.system.idle_threads import POLLS, cores_in_use, poll_seldom_if_busy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the file is Linux's")


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in idle_threads.CHOSEN_BY:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch")


@pytest.mark.parametrize(
    ("ticks", "cores"),
    [
        ((50, 0, 0), 0.5),  # of a user's process
        ((100, 0, 70), 1.7),
        ((0, 100, 0), 0.0),  # idle
        ((0, 0, 0), 0.0),
    ],
)
def test_cores_that_others_use(
    ticks: tuple[int, int, int], cores: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four belong to this process; a tick is a hundredth of a second."""
    stat = tmp_path / "stat"
    clock = [7.0]
    user, idle, interrupts = ticks

    def write(user: int, idle: int, interrupts: int) -> None:
        cores = [
            f"cpu{n} {900 * n} 3 4 500 6 {7 + interrupts * (n == 1)} 8 90 0 0" for n in range(4)
        ]
        cores[0] = f"cpu0 {10 + user} 3 4 {500 + idle} 6 7 8 90 0 0"
        stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7", *cores, "intr 12 3", ""]))

    def sleep(seconds: float) -> None:
        clock[0] += 1.0
        write(user, idle, interrupts)

    write(0, 0, 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(idle_threads.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(idle_threads.time, "sleep", sleep)
    assert cores_in_use(1.0, stat) == pytest.approx(cores)


@pytest.mark.parametrize(
    "content", [None, "", "cpu0 1 2", "cpu0 one two three four five six seven"]
)
def test_system_that_does_not_tell_is_quiet(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    assert cores_in_use(0.0, tmp_path / "stat") == 0.0


@pytest.mark.parametrize(
    ("others", "variable", "polls"),
    [
        (0.0, None, None),
        (0.4, None, None),
        (0.6, None, "1000"),
        (2.0, POLLS, "given"),
        (2.0, "OMP_WAIT_POLICY", None),
        (2.0, "LOCAL_WORLD_SIZE", None),
    ],
)
def test_polls_are_few_only_beside_others_or_as_the_user_says(
    others: float, variable: str | None, polls: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "given")
    monkeypatch.setattr(idle_threads, "cores_in_use", lambda _: others)
    poll_seldom_if_busy()
    assert os.environ.get(POLLS) == polls


def test_command_asks_before_it_loads_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()
    monkeypatch.setattr(command, "poll_seldom_if_busy", lambda: order.append("polls"))
    monkeypatch.setattr(command, "load", order.append)
    command.load_torch()
    assert order == ["polls", "torch"]


def test_process_that_always_computes_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as hog:
        try:
            assert max(cores_in_use(0.2) for _ in range(10)) > 0.5
        finally:
            hog.kill()
