import math

import pytest

from gpt.cli.explain.size_options import check_positive, check_range
from gpt.errors import ConfigError


@pytest.mark.parametrize("value", [1, 2, 1000])
def test_what_is_within_is_let_through(value: int) -> None:
    check_range("--size", value, 1)
    check_range("--size", value, 1, 1000, "of shoes")
    check_positive("--size", value / 1000, 1)


@pytest.mark.parametrize(
    ("value", "most", "reason", "words"),
    [
        (0, None, "", "--size is 0, expected at least 1"),
        (0, 1000, "", "--size is 0, expected 1 to 1,000"),
        (1001, 1000, "of shoes", "--size is 1,001, expected 1 to 1,000 (of shoes)"),
        (2, 1, "of shoes", "--size is 2, expected 1 (of shoes)"),
    ],
)
def test_what_is_outside_is_told(value: int, most: int | None, reason: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_range("--size", value, 1, most, reason)
    assert str(error.value) == words


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 2.5])
def test_what_is_not_above_zero_or_too_much(value: float) -> None:
    with pytest.raises(ConfigError) as error:
        check_positive("--size", value, 2)
    assert str(error.value) == f"--size is {value:g}, expected a number above 0, at most 2"
