"""Every figure of the README and the guides is in the log of measurements, or a setting of the
code.

A figure is a number with a unit, a number with three decimals and more, as a loss has them, or a
cell of a table that is a number with decimals. Code is left out. A figure holds if one of these is
so:

- A number of the log rounds to it. A number of one or two digits is found in any long text, so the
  log must give it the same unit, in the sentence or in the head of its table.
- It has a sign, and is the difference of two figures of its page.
- The package or a test has it as the value of a name, as a limit of the server is one.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import pytest

from pages.markdown import ROOT, guides, prose, text_of

UNITS = {
    "s": "s",
    "second": "s",
    "minute": "min",
    "ms": "ms",
    "tokens/s": "tokens/s",
    "characters/s": "characters/s",
    "GB/s": "GB/s",
    "kB": "kB",
    "MB": "MB",
    "GB": "GB",
    "KiB": "KiB",
    "MiB": "MiB",
    "GiB": "GiB",
    "byte": "B",
    "TFLOP": "TFLOP",
    "GFLOP/s": "GFLOP/s",
    "nats": "nats",
    "times": "times",
    "%": "%",
}
"""Units by how they are written, without the plural."""
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
"""A pattern of all units; of two that begin alike it finds the longer one."""
IN_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0}
IN_BYTES = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
NUMBER = r"\d[\d,]*(?:\.\d+)?"
LIST = rf"{NUMBER}(?:\)?(?:, | and | to | or |; ){NUMBER})*"
WITH_UNIT = re.compile(
    rf"(?<![\w.,\u2212+-])(?P<numbers>{LIST})\)?\**[ -]?"
    rf"(?P<unit>{UNIT})s?(?![\w/])"
)
# A loss has one or two digits before its point; the number of a paper (2211.17192) has four.
WITH_DECIMALS = re.compile(r"(?<![\w.])(?P<sign>[\u2212+])?(?P<number>\d{1,2}\.\d{3,})(?![\w.])")
CELL = re.compile(r"(?<=\|) *\**(?P<number>[\d,]*\d\.\d{1,2}|\d+,\d+)\** *(?=\|)")
SHORT = 2
"""Digits of a number that is found in any long text."""


@dataclass(frozen=True)
class Figure:
    """A number as a page writes it, and its unit, which is empty for a loss."""

    number: str
    unit: str
    is_signed: bool = False

    def __str__(self) -> str:
        return f"{self.number} {self.unit}".strip()

    @property
    def value(self) -> float:
        return float(self.number.replace(",", ""))

    @property
    def decimals(self) -> int:
        return len(self.number.partition(".")[2])

    @property
    def num_digits(self) -> int:
        return len(re.sub(r"\D", "", self.number).lstrip("0"))


def figures_of(text: str) -> Iterator[Figure]:
    """Yield the figures of a text without code."""
    for match in WITH_UNIT.finditer(text):
        for number in re.findall(NUMBER, match["numbers"].replace(", ", "; ")):
            yield Figure(number, UNITS[match["unit"]])
    for match in WITH_DECIMALS.finditer(text):
        yield Figure(match["number"], "", is_signed=match["sign"] is not None)
    for match in CELL.finditer(text):
        yield Figure(match["number"], "")


def rounds_to(value: float, figure: Figure) -> bool:
    """Return whether a value is the figure, to the decimals that the figure has."""
    half_a_unit = 0.5 * 10.0**-figure.decimals
    # Decimal fractions have no exact binary ones: 1.5245 may be a little more or less.
    return abs(value - figure.value) <= half_a_unit + 1e-9


@cache
def log() -> str:
    return text_of("benchmarks/LOG.md")


@cache
def logged_numbers() -> frozenset[str]:
    """Return all numbers of the log."""
    return frozenset(re.findall(NUMBER, log()))


@cache
def logged_with(unit: str) -> frozenset[str]:
    """Return the numbers of the log that have a unit: in a sentence, or by the head of a table."""
    found = {figure.number for figure in figures_of(log()) if figure.unit == unit}
    spellings = [re.escape(word) for word, meaning in UNITS.items() if meaning == unit]
    names_unit = re.compile(rf"(?<!\w)(?:{'|'.join(spellings)})s?(?!\w)")
    for paragraph in log().split("\n\n"):
        lines = paragraph.strip().splitlines()
        is_table = lines and lines[0].startswith("|")
        if is_table and names_unit.search(lines[0]):
            found.update(re.findall(NUMBER, paragraph))
    return frozenset(found)


def is_logged(figure: Figure) -> bool:
    is_short = figure.unit != "" and figure.num_digits <= SHORT
    for number in logged_with(figure.unit) if is_short else logged_numbers():
        logged = Figure(number, figure.unit)
        # A number of fewer decimals does not say what the page says.
        if logged.decimals >= figure.decimals and rounds_to(logged.value, figure):
            return True
    return False


def is_difference(figure: Figure, page: str) -> bool:
    """Return whether a signed figure is the difference of two figures of its page."""
    if not figure.is_signed:
        return False
    others = {each.value for each in figures_of(prose(text_of(page))) if not each.is_signed}
    return any(rounds_to(abs(one - other), figure) for one, other in combinations(others, 2))


@cache
def settings() -> dict[str, frozenset[float]]:
    """Return the values of names of the package and its tests that have a dimension in them."""
    found: dict[str, set[float]] = {"seconds": set(), "bytes": set()}
    for folder in ("gpt", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for name, value in _assigned(ast.parse(path.read_text(encoding="utf-8"))):
                for dimension, values in found.items():
                    if dimension in name.lower():
                        values.add(value)
    return {dimension: frozenset(values) for dimension, values in found.items()}


def _assigned(tree: ast.AST) -> Iterator[tuple[str, float]]:
    """Yield the names to which numbers are assigned, each with its number."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as expression)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression)
            ):
                number = _number(expression)
                if number is not None:
                    yield name, number


def _number(node: ast.expr) -> float | None:
    """Return the value of a number or of arithmetic with numbers, else None."""
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "setting", "eval"), {"__builtins__": {}})
    return float(value) if isinstance(value, int | float) else None


def is_setting(figure: Figure) -> bool:
    """Return whether the figure is the value of a name, to the decimals that it has."""
    for dimension, factors in (("seconds", IN_SECONDS), ("bytes", IN_BYTES)):
        factor = factors.get(figure.unit)
        if factor is not None:
            return any(rounds_to(value / factor, figure) for value in settings()[dimension])
    return False


def holds(figure: Figure, page: str) -> bool:
    return is_logged(figure) or is_difference(figure, page) or is_setting(figure)


@pytest.mark.parametrize("page", guides())
def test_figures_are_in_the_log_or_settings(page: str) -> None:
    figures = list(figures_of(prose(text_of(page))))
    assert [str(figure) for figure in figures if not holds(figure, page)] == []


def test_figures_are_told_from_other_numbers() -> None:
    text = "3.11 in 66.6 or 68 s: 1.8406, \N{MINUS SIGN}0.024, 8.38 times, 4% | **7.9** | 24 |"
    assert [str(figure) for figure in figures_of(text)] == [
        *("66.6 s", "68 s", "8.38 times", "4 %", "1.8406", "0.024", "7.9"),
    ]


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (Figure("66.6", "s"), True),
        (Figure("66.7", "s"), False),
        (Figure("1.525", ""), True),  # 1.5245 in the log
        (Figure("1.5244", ""), False),
        (Figure("97", "tokens/s"), False),  # in the log, but not with this unit
        (Figure("0.024", "", is_signed=True), True),  # 1.5216 - 1.4978 in docs/training.md
        (Figure("10", "min"), True),  # `SECONDS` of a trial
    ],
    ids=str,
)
def test_figure_holds_by_the_log_its_page_or_a_setting(figure: Figure, expected: bool) -> None:
    assert holds(figure, "docs/training.md") is expected
