from drills.decoding import FIGURES, attack
from drills.frame import Tally


def test_a_random_model_writes_the_same_texts_in_every_way() -> None:
    tally = Tally(*FIGURES)
    attack(tally, 1)
    assert tally.failures == []
    assert tally.figures["drafts accepted"] != 0
