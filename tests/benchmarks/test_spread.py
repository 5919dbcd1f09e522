import pytest

from benchmarks.spread import Spread, in_turns, percentile, ratios, show_ratios, spread_of


def test_statistics_by_hand() -> None:
    assert spread_of([1, 2, 3, 4, 10]) == Spread(4.0, pytest.approx(12.5**0.5), 3, 1.4, pytest.approx(7.6))


def test_a_single_number_has_no_deviation() -> None:
    assert spread_of([7.0]) == Spread(7.0, None, 7.0, 7.0, 7.0)


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (1, 4), (0.1, 1.3)])
def test_a_percentile_lies_between_its_neighbours(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == pytest.approx(value)


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([10, 20], [15, 60]) == [1.5, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1, 2], [1])


def test_every_other_round_goes_backwards() -> None:
    assert in_turns(["a", "b", "c"], 3) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def test_ratios_show_their_range_where_there_are_several() -> None:
    assert show_ratios([1.5]) == "1.50"
    assert show_ratios([1.5, 2.0, 1.0]) == "1.50 (1.00-2.00)"
