from pathlib import Path

from drills.frame import Tally
from drills.fuzz import FIGURES, attack_all


def test_input_that_nobody_expects_is_refused_or_works(tmp_path: Path) -> None:
    """Commands, prompts and requests, which cost more, are left to the drill."""
    tally = Tally(*FIGURES)
    attack_all(tmp_path, tally, False, ("configurations", "tokenizers", "checkpoints"))
    assert tally.failures == []
