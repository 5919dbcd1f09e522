from drills.decoding import FIGURES, attack
from drills.frame import Tally


def test_random_models_write_the_same_texts_in_every_way() -> None:
    tally = Tally(*FIGURES)
    attack(tally, 2)
    assert tally.failures == []
    assert tally.figures["drafts accepted"] != 0
