"""The type of a run's name, which is also the name of its folder."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator


def is_name_character(character: str, first: bool = False) -> bool:
    """Return whether a run's name may have a character, or with `first` begin with it.

    A name begins with a letter or digit of any script, or an emoji. Dots, hyphens, underscores and
    combining marks, which belong to the letter before them, may follow.
    """
    # Categories of Unicode: L... are letters, N... numbers, M... marks, and So has the emoji.
    category = unicodedata.category(character)
    if category[0] in "LN" or category == "So":
        return True
    may_follow = category[0] == "M" or character in "._-"
    return may_follow and not first


def _check_name(text: str) -> str:
    """Return a run's name in composed form (NFC); ValueError: it cannot be one."""
    name = unicodedata.normalize("NFC", text)
    begins_well = name != "" and is_name_character(name[0], first=True)
    if not begins_well or not all(map(is_name_character, name)):
        raise ValueError(
            "expected letters, digits, dots, hyphens and underscores, of which the first is a "
            "letter or digit"
        )
    return name


RunName = Annotated[str, AfterValidator(_check_name)]
"""The name of a run folder; the same letters are the same name, however they are composed (NFC)."""
