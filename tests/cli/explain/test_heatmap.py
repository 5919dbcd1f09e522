import pytest

from gpt.cli.explain.heatmap import GRAYS, SHADES, heat_map, numbers

MATRIX = [[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.1, 0.45, 0.45]]
LABELS = ["a", "⏎", "U+200B"]


def test_shades() -> None:
    assert heat_map(MATRIX, LABELS, color=False).splitlines() == [
        "       a ⏎ ·",
        "     a ██",
        "     ⏎ ▒▒██",
        "U+200B ░░▓▓▓▓",
    ]


@pytest.mark.parametrize(
    ("value", "shade"),
    [(0.0, " "), (0.03, " "), (0.05, "░"), (0.2, "▒"), (0.5, "▓"), (0.63, "▓"), (0.65, "█"), (1.0, "█")],
)
def test_five_shades_by_the_root_of_the_weight(value: float, shade: str) -> None:
    assert heat_map([[value]], ["a"], color=False).splitlines()[1] == "a " + shade * 2
    assert shade in SHADES


@pytest.mark.parametrize(
    ("value", "gray"), [(0.0, 16), (1.0, 231), (0.2, 236), (-0.1, 16), (1.0000001, 231)]
)  # rounding may go past the ends
def test_colors_of_a_terminal(value: float, gray: int) -> None:
    line = heat_map([[value]], ["a"], color=True).splitlines()[1]
    assert line == f"a \x1b[48;5;{gray}m  \x1b[0m"
    assert gray in GRAYS


def test_numbers_with_the_place_of_every_row_and_column() -> None:
    assert numbers(MATRIX, LABELS).splitlines() == [
        "                 0     1     2",
        "                 a     ⏎U+200B",
        "    0      a 1.000     .     .",
        "    1      ⏎ 0.300 0.700     .",
        "    2 U+200B 0.100 0.450 0.450",
    ]


def test_columns_are_aligned_with_long_texts() -> None:
    size = 120
    lines = numbers([[0.0] * size] * size, ["x"] * size).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[0].split() == [str(column) for column in range(size)]
