from collections.abc import Callable
from pathlib import Path

import pytest

from drills.frame import Tally
from drills.soak import Reading, Turns, compare, run


def test_memory_and_files_do_not_grow_and_no_block_stays_in_use(tmp_path: Path) -> None:
    assert run(tmp_path, False).failures == []


@pytest.mark.parametrize(("drift", "alarms"), [(1.0, 0), (1.06, 1)])
def test_a_neighbor_is_no_drift(drift: float, alarms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second half another process takes a share of everything, and much of some pieces."""
    now = 0.0
    monkeypatch.setattr("drills.soak.time.process_time", lambda: now)

    def passing(seconds: float) -> Callable[[], None]:
        def compute() -> None:
            nonlocal now
            now += seconds

        return compute

    readings = []
    for part in range(20):
        busy, worse = (1.4, drift) if part >= 10 else (1.0, 1.0)
        turns = Turns(passing(0.001 * busy))
        for piece in range(9):
            passing(0.003 * busy * worse + (0.05 if busy > 1 and piece % 3 == 0 else 0.0))()
            turns.take()
        readings.append(Reading(1, 1, turns.cost()))
    tally = Tally()
    compare(tally, "training", readings, True)
    assert len(tally.failures) == alarms
