"""Types of values that are lists in YAML, and tuples in a section."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gpt.config.ranges import Fraction, PositiveFloat


def list_to_tuple(value: Any) -> Any:
    """Return a list as a tuple, since a frozen section must not hold a mutable value."""
    return tuple(value) if isinstance(value, list) else value


Fractions = Annotated[
    tuple[Annotated[float, Field(gt=0, lt=1)], ...], BeforeValidator(list_to_tuple)
]
Weights = Annotated[tuple[PositiveFloat, ...], BeforeValidator(list_to_tuple)]
Betas = Annotated[tuple[Fraction, Fraction], BeforeValidator(list_to_tuple)]
Strings = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(list_to_tuple)]
