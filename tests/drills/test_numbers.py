from pathlib import Path

from drills.numbers import run


def test_values_that_are_not_finite_reach_no_weight(tmp_path: Path) -> None:
    assert run(tmp_path, False).failures == []
