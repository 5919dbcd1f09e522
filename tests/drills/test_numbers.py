from pathlib import Path

from drills.frame import Tally
from drills.numbers import FIGURES, attack_alone


def test_values_that_are_not_finite_reach_no_weight(tmp_path: Path) -> None:
    """Pairs of processes, which cost more, are left to the drill."""
    tally = Tally(*FIGURES)
    attack_alone(tmp_path, tally, False)
    assert tally.failures == []
