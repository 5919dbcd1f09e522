"""Numbers on the command line that are out of range, told in one way."""

import math

from gpt.errors import ConfigError


def check_range(option: str, value: int, least: int, most: int | None = None, reason: str = "") -> None:
    """Refuse a number outside `least` to `most`.

    Args:
        option: its name.
        value: that was given.
        least: smallest that is allowed.
        most: largest; None: there is none.
        reason: what the range comes from, if that is not plain.

    Raises:
        ConfigError: it is outside.
    """
    if value >= least and (most is None or value <= most):
        return
    allowed = f"at least {least:,}" if most is None else f"{least:,}" if least == most else f"{least:,} to {most:,}"
    raise ConfigError(f"{option} is {value:,}, expected {allowed}" + (f" ({reason})" if reason else ""))


def check_positive(option: str, value: float, most: float = math.inf) -> None:
    """Refuse what is not a finite number above 0, at most `most`.

    Raises:
        ConfigError: it is not.
    """
    if not (0 < value <= most and math.isfinite(value)):
        limit = "" if math.isinf(most) else f", at most {most:,.0f}"
        raise ConfigError(f"{option} is {value:g}, expected a number above 0{limit}")
