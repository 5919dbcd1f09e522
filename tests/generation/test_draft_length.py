"""How long drafts are, by the times and the acceptance of those before."""

from random import Random

import pytest

from gpt.generation.draft_length import LENGTHS, Acceptance, DraftLength, expected_tokens


class Simulation:
    """Decoding with drafts on a machine whose times are known.

    Attributes:
        seconds: the time so far.
        tokens: how many tokens it gave.
    """

    def __init__(self, rate: float, pass_seconds: float, draft_seconds: float) -> None:
        self.rate = rate
        self.pass_seconds = pass_seconds
        self.draft_seconds = draft_seconds
        self.seconds = 0.0
        self.tokens = 0
        self._acceptance = Acceptance()
        self._lengths = DraftLength(self._acceptance)
        self._random = Random(0)

    def rounds(self, count: int) -> list[int]:
        """Decode some rounds; return the lengths of their drafts."""
        lengths = []
        for _ in range(count):
            length = self._lengths.next()
            accepted = 0
            while accepted < length and self._random.random() < self.rate:
                accepted += 1
            if length > 0:
                self._acceptance.record(accepted, min(accepted + 1, length))
            # Each token more makes a pass of the large model a twentieth longer.
            seconds = self.pass_seconds * (1 + length / 20) + length * self.draft_seconds
            self._lengths.record(length, seconds)
            self.seconds += seconds
            self.tokens += 1 + accepted
            lengths.append(length)
        return lengths


@pytest.mark.parametrize(("length", "expected"), [(0, 1.0), (1, 1.5), (2, 1.75), (3, 1.875)])
def test_expected_tokens_are_a_geometric_series(length: int, expected: float) -> None:
    assert expected_tokens(length, 0.5) == expected
    assert expected_tokens(length, 1.0) == length + 1


@pytest.mark.parametrize("rate", [0.6, 0.75, 0.9])
def test_length_comes_near_the_best_one(rate: float) -> None:
    simulation = Simulation(rate, pass_seconds=1.0, draft_seconds=0.04)
    simulation.rounds(200)
    start = simulation.seconds
    tokens = simulation.tokens
    simulation.rounds(3000)
    found = (simulation.seconds - start) / (simulation.tokens - tokens)
    costs = [(1 + 0.09 * length) / expected_tokens(length, rate) for length in LENGTHS]
    assert found < 1.06 * min(costs)
    assert found < 0.6  # of a pass for each token


def test_draft_that_is_never_right_costs_less_than_three_percent() -> None:
    simulation = Simulation(rate=0.0, pass_seconds=1.0, draft_seconds=0.04)
    lengths = simulation.rounds(2000)
    assert simulation.seconds < 1.03 * simulation.tokens
    assert lengths.count(0) > 1900


def test_draft_that_becomes_good_is_used_again() -> None:
    simulation = Simulation(rate=0.0, pass_seconds=1.0, draft_seconds=0.04)
    simulation.rounds(500)
    simulation.rate = 0.8
    assert simulation.rounds(4000)[-200:].count(0) < 20
