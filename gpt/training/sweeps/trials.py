"""The trials of a sweep: every combination of a grid, or some sampled at random."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gpt.config import Config
from gpt.config.loading import Finding, dotted, listed, with_values
from gpt.errors import ConfigError
from gpt.training.sweeps.space import SearchSpace

MAX_TRIALS = 10_000
NAME_CHARACTERS = 100
ATTEMPTS = 100_000
"""Repeated ones in a row, after which a space has no other combinations."""


@dataclass(frozen=True)
class Trial:
    """One training of a sweep.

    Attributes:
        values: by `section.key`, as JSON has them.
    """

    values: Mapping[str, Any]

    @property
    def overrides(self) -> list[str]:
        """Return the values as overrides of the train command."""
        return [f"{name}={json.dumps(value)}" for name, value in self.values.items()]

    @property
    def name(self) -> str:
        """Return the name of the run: its values, and their hash where a name cannot hold them."""
        text = "_".join(f"{name}-{_shown(value)}" for name, value in self.values.items())
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:NAME_CHARACTERS]
        if name == text:
            return name
        return f"{name}-{hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.values.items())


def plan_trials(space: SearchSpace, base: Config, number: int | None = None, seed: int = 0) -> list[Trial]:
    """Return the trials of a sweep, each of which has a valid configuration.

    Args:
        base: the values of all other keys.
        number: of random trials; None: every combination. A larger one begins with the same trials.

    Raises:
        ConfigError: something is wrong with the space; the message holds one line per problem.
    """
    problems = list(space.problems)
    if number is None:
        candidates, found = _combine(space)
        problems += found
    elif number > MAX_TRIALS:
        candidates = []
        problems.append(f"--random {number:,}: expected at most {MAX_TRIALS:,} trials")
    else:
        candidates = list(_sample(space, number, seed))
        if space.axes and len(candidates) < number:
            problems.append(f"{space.path}: has {len(candidates):,} combinations, fewer than --random {number:,}")
    trials, invalid = _check(candidates, base)
    problems += [f"{space.place('.'.join(key))}: {dotted(key)}: {message}" for key, message in invalid]
    if problems:
        raise ConfigError(listed(str(space.path), problems))
    return trials


def _combine(space: SearchSpace) -> tuple[list[dict[str, Any]], list[str]]:
    """Return every combination of the listed values, and what keeps the space from being a grid."""
    lists = {axis.name: axis.values for axis in space.axes if isinstance(axis.values, tuple)}
    problems = [
        f"{space.place(axis.name)}: {axis.name}: a range needs --random NUMBER; a grid needs a list of values"
        for axis in space.axes
        if axis.name not in lists
    ]
    total = math.prod(map(len, lists.values()))
    if total > MAX_TRIALS:
        problems.append(f"{space.path}: a grid of {total:,} trials; more than {MAX_TRIALS:,} need --random NUMBER")
    combinations = itertools.islice(itertools.product(*lists.values()), MAX_TRIALS)
    return [dict(zip(lists, values, strict=True)) for values in combinations], problems


def _sample(space: SearchSpace, number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Sample different combinations, fewer than `number` if there seem to be no more."""
    random, seen = Random(seed), set()
    for _ in range(number if space.axes else 0):
        for _ in range(ATTEMPTS):
            values = {axis.name: axis.sample(random) for axis in space.axes}
            if repr(values) not in seen:
                break
        else:
            return
        seen.add(repr(values))
        yield values


def _check(candidates: Sequence[Mapping[str, Any]], base: Config) -> tuple[list[Trial], list[Finding]]:
    """Return a trial for each combination that is valid, and what is wrong with others, everything once."""
    trials, findings = [], dict[Finding, None]()
    for values in candidates:
        config, found = with_values(base, values)
        findings |= dict.fromkeys(found)
        if config is not None:
            leaves = config.leaves()
            trials.append(Trial({name: leaves[name] for name in values}))
    return trials, list(findings)


def _shown(value: Any) -> str:
    """Return a value as text, without the quotes of a word."""
    return value if isinstance(value, str) else json.dumps(value)
