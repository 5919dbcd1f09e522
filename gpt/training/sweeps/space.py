"""The search space of a sweep: a YAML file with a list of values, or a range, for each key it varies."""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gpt.config.loading import at_line, dotted, line_of, parse_document, read_yaml
from gpt.config.strict_yaml import Document

EXAMPLE = "optim: {learning_rate: [1e-3, 3e-3]}"
CHOSEN = ("run.name", "run.dir")
"""Keys that the sweep sets itself."""
SCALES = ("linear", "log")
DIGITS = 4
"""Significant digits of a number that is sampled from a range."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; whole ones if both ends are.

    Attributes:
        is_log: uniform in the logarithm.
    """

    low: int | float
    high: int | float
    is_log: bool

    def sample(self, random: Random) -> int | float:
        """Sample a number."""
        if self.is_log:
            number = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        else:
            number = random.uniform(self.low, self.high)
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        rounded = round(number) if is_whole else float(f"{number:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)


@dataclass(frozen=True)
class Axis:
    """A key that varies.

    Attributes:
        name: `section.key`.
    """

    name: str
    values: tuple[Any, ...] | Range

    def sample(self, random: Random) -> Any:
        """Sample a value."""
        return self.values.sample(random) if isinstance(self.values, Range) else random.choice(self.values)


@dataclass(frozen=True)
class SearchSpace:
    """The axes of a sweep, in the order of the file, and all that is wrong with the file itself.

    Attributes:
        document: its contents, with lines.
        axes: those that can be read.
        problems: a line for each problem.
    """

    path: Path
    document: Document
    axes: tuple[Axis, ...]
    problems: tuple[str, ...]

    def place(self, name: str) -> str:
        """Return the file and the line of a `section.key`, or of its section."""
        return at_line(str(self.path), line_of(tuple(name.split(".", 1)), self.document))


def read_space(path: Path) -> SearchSpace:
    """Read the file of a search space.

    Raises:
        ConfigError: it is missing, unreadable, or no YAML mapping.
    """
    origin = str(path)
    document, problems = parse_document(read_yaml(path, "grid", "grid.yaml"), origin)
    axes = []
    if not document.data:
        problems.append(f"{origin}: varies nothing; give keys with lists of values, for example {EXAMPLE}")
    for section, keys in document.data.items():
        if not isinstance(keys, dict) or not keys:
            place = at_line(origin, line_of((str(section),), document))
            problems.append(f"{place}: {dotted((str(section),))}: {_not_a_section(str(section), keys)}")
            continue
        for key, given in keys.items():
            location = (str(section), str(key))
            values = _read_values(given)
            if ".".join(location) in CHOSEN:
                values = "is set by the sweep, and cannot vary"
            if isinstance(values, str):
                problems.append(f"{at_line(origin, line_of(location, document))}: {dotted(location)}: {values}")
            else:
                axes.append(Axis(".".join(location), values))
    return SearchSpace(path, document, tuple(axes), tuple(problems))


def _not_a_section(name: str, keys: Any) -> str:
    section, dot, key = name.partition(".")
    if dot:
        return f"write {section}: on a line of its own, and {key}: below it"
    return f"expected keys below this section, got {keys!r}"


def _read_values(given: Any) -> tuple[Any, ...] | Range | str:
    """Return the values or the range that is given, or what is wrong with it."""
    if isinstance(given, dict):
        return _read_range(given)
    if not isinstance(given, list):
        return f"got {given!r}, expected a list of values, in brackets"
    if not given:
        return "is an empty list; give at least one value"
    for number, value in enumerate(given):
        if any(value == other and type(value) is type(other) for other in given[:number]):
            return f"has the value {value!r} twice"
    return tuple(given)


def _read_range(given: dict[Any, Any]) -> Range | str:
    low, high, scale = given.get("low"), given.get("high"), given.get("scale", "linear")
    numbers = [number for number in (low, high) if isinstance(number, int | float) and not isinstance(number, bool)]
    if set(given) - {"low", "high", "scale"} or len(numbers) != 2 or not _is_finite(numbers[0], numbers[1]):
        return f"got {given!r}, expected a list of values, or a range such as {{low: 1e-4, high: 1e-2, scale: log}}"
    if scale not in SCALES:
        return f"scale is {scale!r}, expected one of {', '.join(SCALES)}"
    if numbers[0] >= numbers[1]:
        return f"low {numbers[0]:g} is not below high {numbers[1]:g}"
    if scale == "log" and numbers[0] <= 0:
        return f"low is {numbers[0]:g}, and a range with scale: log is above 0"
    return Range(numbers[0], numbers[1], scale == "log")


def _is_finite(low: float, high: float) -> bool:
    """Return whether floats can hold both ends and what is between them; whole numbers may be larger."""
    try:
        return math.isfinite(low) and math.isfinite(high) and math.isfinite(float(high) - float(low))
    except OverflowError:
        return False
