"""Types of paths: one path, one or none, and one or several of a corpus."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from gpt.config.lists import list_to_tuple


def _check_path(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected a path, which has no NUL character")
    return text


def _check_corpus_paths(value: Any) -> Any:
    """Return the value of `data.path` if it is None, a path, or a list of paths.

    A list becomes a tuple. Configurations of earlier versions may have a mapping of each text to
    its weight; the message about it says what to write instead.
    """
    if value is None:
        return None
    if isinstance(value, dict):
        raise ValueError(
            "texts have no weights: expected a path, or [PATH, ...], sampled by length"
        )
    paths = value if isinstance(value, list | tuple) else [value]
    if not paths or not all(_is_path(path) for path in paths):
        raise ValueError("expected a path, or [PATH, ...]")
    return list_to_tuple(value)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _refuse_several(value: Any) -> Any:
    """Refuse a list of paths where one path is expected, with a message that says what to do."""
    if isinstance(value, list | tuple):
        raise ValueError("expected one path; put the files into a folder, and name that")
    return value


PathText = Annotated[str, Field(min_length=1), AfterValidator(_check_path)]
OnePath = Annotated[PathText | None, BeforeValidator(_refuse_several)]
"""A path or None; the message about a list says what to do instead."""
CorpusPaths = Annotated[str | tuple[str, ...] | None, BeforeValidator(_check_corpus_paths)]
"""None, a path, or several paths."""
