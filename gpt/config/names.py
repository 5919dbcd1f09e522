"""The type of a run's name, which is also the name of its folder."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator


def is_name_character(character: str, first: bool = False) -> bool:
    """Return whether a run's name may contain a character, or begin with it if `first` is true.

    A name begins with a letter or digit of any script, or an emoji. Dots, hyphens, underscores and
    combining marks may follow; a combining mark belongs to the letter before it.
    """
    # The categories of Unicode begin with L for letters, N for numbers and M for marks. Emoji are
    # in the category So, of other symbols.
    category = unicodedata.category(character)
    if category[0] in "LN" or category == "So":
        return True
    may_follow = category[0] == "M" or character in "._-"
    return may_follow and not first


def _check_name(text: str) -> str:
    """Return a run's name in composed form (NFC); raise ValueError if a run cannot have it."""
    name = unicodedata.normalize("NFC", text)
    begins_well = name != "" and is_name_character(name[0], first=True)
    if not begins_well or not all(map(is_name_character, name)):
        raise ValueError(
            "expected letters, digits, dots, hyphens and underscores, of which the first is a "
            "letter or digit"
        )
    return name


RunName = Annotated[str, AfterValidator(_check_name)]
"""The name of a run folder, in composed form (NFC): the same letters are always the same name."""
