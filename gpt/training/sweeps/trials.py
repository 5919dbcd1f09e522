"""The trials of a sweep: every combination of the values in a grid file, or some that are sampled at random."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gpt.config import Config
from gpt.config.loading import at_line, dotted, line_of, listed, override, parse_document, read_yaml, with_values
from gpt.errors import ConfigError

EXAMPLE = "optim: {learning_rate: [1e-3, 3e-3]}"
CHOSEN = ("run.name", "run.dir")
"""Keys that the sweep sets itself."""
SCALES = ("linear", "log")
DIGITS = 4
"""Significant digits of a number that is sampled from a range."""
MAX_TRIALS = 10_000
NAME_CHARACTERS = 100
ATTEMPTS = 100_000
"""Repeated combinations in a row, after which a space has no others."""


@dataclass(frozen=True)
class Trial:
    """One training of a sweep: its values by `section.key`, as JSON has them."""

    values: Mapping[str, Any]

    @property
    def overrides(self) -> list[str]:
        """The values as overrides of the train command."""
        return [override(name, value) for name, value in self.values.items()]

    @property
    def name(self) -> str:
        """The name of its run: its values, and their hash where a name cannot hold them."""
        text = "_".join(f"{name}-{_shown(value)}" for name, value in self.values.items())
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:NAME_CHARACTERS]
        if name == text:
            return name
        return f"{name}-{hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.values.items())


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, whole ones if both ends are; with `is_log` uniform in the logarithm."""

    low: int | float
    high: int | float
    is_log: bool

    def sample(self, random: Random) -> int | float:
        if self.is_log:
            number = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        else:
            number = random.uniform(self.low, self.high)
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        rounded = round(number) if is_whole else float(f"{number:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)


Axes = dict[str, list[Any] | Range]
"""What varies, by `section.key` in the order of the file."""


def plan_trials(path: Path, base: Config, number: int | None = None, seed: int = 0) -> list[Trial]:
    """Return the trials of a sweep, each of which has a valid configuration.

    Args:
        path: YAML file with a list of values, or a range, for each key that varies.
        base: the values of all other keys.
        number: of random trials; None: every combination. A larger one begins with the same trials.

    Raises:
        ConfigError: the file cannot be read, or something is wrong with it; the message holds one line per problem.
    """
    document, problems = parse_document(read_yaml(path, "grid", "grid.yaml"), str(path))
    axes: Axes = {}
    found: list[tuple[tuple[str, ...], str]] = []
    for section, keys in document.data.items():
        if not isinstance(keys, dict) or not keys:
            found.append(((str(section),), _not_a_section(str(section), keys)))
            continue
        for key, given in keys.items():
            name = f"{section}.{key}"
            try:
                axes[name] = _read_values(name, given, number is not None)
            except ValueError as problem:
                found.append(((str(section), str(key)), str(problem)))
    if not document.data:
        problems.append(f"{path}: varies nothing; give keys with lists of values, for example {EXAMPLE}")
    combinations, shortage = _combine(axes) if number is None else _sample(axes, number, seed)
    trials = []
    for values in combinations:
        config, invalid = with_values(base, values)
        found += invalid
        if config is not None:
            leaves = config.leaves()
            trials.append(Trial({name: leaves[name] for name in values}))
    for key, message in dict.fromkeys(found):
        problems.append(f"{at_line(str(path), line_of(key, document))}: {dotted(key)}: {message}")
    if shortage:
        problems.append(f"{path}: {shortage}")
    if problems:
        raise ConfigError(listed(str(path), problems))
    return trials


def _not_a_section(name: str, keys: Any) -> str:
    section, dot, key = name.partition(".")
    if dot:
        return f"write {section}: on a line of its own, and {key}: below it"
    return f"expected keys below this section, got {keys!r}"


def _read_values(name: str, given: Any, is_random: bool) -> list[Any] | Range:
    """Return the values or the range of a key; ValueError says what is wrong with it."""
    if name in CHOSEN:
        raise ValueError("is set by the sweep, and cannot vary")
    if isinstance(given, dict):
        found = _read_range(given)
        if not is_random:
            raise ValueError("a range needs --random NUMBER; a grid needs a list of values")
        return found
    if not isinstance(given, list):
        raise ValueError(f"got {given!r}, expected a list of values, in brackets")
    if not given:
        raise ValueError("is an empty list; give at least one value")
    for number, value in enumerate(given):
        if any(value == other and type(value) is type(other) for other in given[:number]):
            raise ValueError(f"has the value {value!r} twice")
    return given


def _read_range(given: dict[Any, Any]) -> Range:
    low: Any = given.get("low")
    high: Any = given.get("high")
    scale = given.get("scale", "linear")
    are_numbers = type(low) in (int, float) and type(high) in (int, float)
    if set(given) - {"low", "high", "scale"} or not are_numbers or not _is_finite(low, high):
        raise ValueError(
            f"got {given!r}, expected a list of values, or a range such as {{low: 1e-4, high: 1e-2, scale: log}}"
        )
    if scale not in SCALES:
        raise ValueError(f"scale is {scale!r}, expected one of {', '.join(SCALES)}")
    if low >= high:
        raise ValueError(f"low {low:g} is not below high {high:g}")
    if scale == "log" and low <= 0:
        raise ValueError(f"low is {low:g}, and a range with scale: log is above 0")
    return Range(low, high, scale == "log")


def _is_finite(low: float, high: float) -> bool:
    """Return whether floats can hold both ends and what is between them; whole numbers may be larger."""
    try:
        return math.isfinite(float(high) - float(low))
    except OverflowError:
        return False


def _combine(axes: Axes) -> tuple[Iterator[dict[str, Any]], str]:
    """Return every combination of listed values, and why there are too many of them, if so."""
    lists = {name: values for name, values in axes.items() if isinstance(values, list)}
    total = math.prod(map(len, lists.values()))
    combinations = itertools.islice(itertools.product(*lists.values()), MAX_TRIALS)
    problem = f"a grid of {total:,} trials; more than {MAX_TRIALS:,} need --random NUMBER"
    return (dict(zip(lists, values, strict=True)) for values in combinations), problem if total > MAX_TRIALS else ""


def _sample(axes: Axes, number: int, seed: int) -> tuple[list[dict[str, Any]], str]:
    """Return different combinations, and why they are fewer than `number`, if so; ConfigError: it is too large."""
    if number > MAX_TRIALS:
        raise ConfigError(f"--random {number:,}: expected at most {MAX_TRIALS:,} trials")
    random, found = Random(seed), dict[str, dict[str, Any]]()
    repeated = 0
    while axes and len(found) < number:
        values = {
            name: axis.sample(random) if isinstance(axis, Range) else random.choice(axis) for name, axis in axes.items()
        }
        repeated = repeated + 1 if repr(values) in found else 0
        if repeated == ATTEMPTS:
            return list(found.values()), f"has {len(found):,} combinations, fewer than --random {number:,}"
        found.setdefault(repr(values), values)
    return list(found.values()), ""


def _shown(value: Any) -> str:
    """Return a value as text, without the quotes of a word."""
    return value if isinstance(value, str) else json.dumps(value)
