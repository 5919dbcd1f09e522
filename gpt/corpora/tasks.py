"""What worker processes do with a block of text; both sides of the pipe know a task by its description in JSON."""

from functools import cached_property
from typing import Any, Protocol

from gpt.corpora.text import distinct_code_points
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer


class Task(Protocol):
    """A function from a text to bytes that another process can rebuild."""

    def __call__(self, text: str) -> bytes:
        """Return the result for one text."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return what `task_from_dict` rebuilds the task from, as JSON values."""
        ...


class Encode:
    """Returns the ids of a text, in the smallest unsigned type that holds all ids.

    Args:
        tokenizer: `Tokenizer.to_dict` of the tokenizer.
    """

    def __init__(self, tokenizer: dict[str, Any]) -> None:
        self._saved = tokenizer

    def __call__(self, text: str) -> bytes:
        return self._tokenizer.encode_narrow(text).tobytes()

    def to_dict(self) -> dict[str, Any]:
        return {"task": "encode", "tokenizer": self._saved}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_from_dict(self._saved)


class FindCharacters:
    """Returns the distinct code points of a text, as uint32."""

    def __call__(self, text: str) -> bytes:
        return distinct_code_points(text).astype("<u4").tobytes()

    def to_dict(self) -> dict[str, Any]:
        return {"task": "find characters"}


def task_from_dict(data: dict[str, Any]) -> Task:
    """Return the task whose `to_dict` gave the value."""
    return FindCharacters() if data["task"] == "find characters" else Encode(data["tokenizer"])
