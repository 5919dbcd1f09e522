"""Types of numbers, by the range that they lie in."""

from typing import Annotated

from pydantic import Field

SEEDS = 2**32
"""The number of seeds.

Torch's generator on a CPU reads only the lowest 32 bits of a seed, so that a larger seed would give
the random numbers of a smaller one.
"""
# The upper bounds keep values within 64 bits, with which torch and NumPy compute.
PositiveInt = Annotated[int, Field(ge=1, lt=2**63)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Sequences = Annotated[int, Field(ge=1, le=1_000_000)]
"""A number of sequences, or of batches of them."""
