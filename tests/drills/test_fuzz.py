from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest

from drills import fuzz_guided
from drills.frame import Tally
from drills.fuzz import FIGURES, attack_all


def test_input_that_nobody_expects_is_refused_or_works(tmp_path: Path) -> None:
    """Commands, prompts and requests, which cost more, are left to the drill."""
    tally = Tally(*FIGURES)
    attack_all(tmp_path, tally, False, ("configurations", "tokenizers", "checkpoints"))
    assert tally.failures == []


@pytest.mark.parametrize("name", fuzz_guided.TESTS)
def test_bytes_can_make_the_choices_of_a_guided_test(name: str) -> None:
    module, _, test = fuzz_guided.TESTS[name].partition(":")
    assert getattr(import_module(module), test).hypothesis.fuzz_one_input(bytes(1000)) is not None


def test_what_is_not_possible_here_is_counted(tmp_path: Path) -> None:
    tally = Tally(*FIGURES)
    with patch("drills.fuzz_guided.find_spec", lambda name: None):
        fuzz_guided.guide(tmp_path, tally, 10)
    assert (tally.figures["kinds of them not possible here"], tally.figures["guided by coverage"]) == (4, 0)
