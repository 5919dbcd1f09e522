from pathlib import Path

from drills.frame import Tally
from drills.reproducibility import FIGURES, save_at_every_step
from training.sessions import quick_beginnings


def test_a_save_changes_no_bit(tmp_path: Path) -> None:
    tally = Tally(*FIGURES)
    with quick_beginnings():
        save_at_every_step(tmp_path, tally, ("shuffled",), 4, 3)
    assert tally.failures == []
