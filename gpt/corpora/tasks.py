"""What worker processes do with a block of text; both sides of the pipe know a task by its description in JSON."""

from dataclasses import dataclass
from typing import Any

from gpt.corpora.text import distinct_code_points
from gpt.data.saved_tokenizer import tokenizer_from_dict
from gpt.data.tokenizers import Tokenizer


@dataclass
class Encode:
    """Gives the ids of a text, in the smallest unsigned type that holds all ids."""

    tokenizer: Tokenizer

    def __call__(self, text: str) -> bytes:
        return self.tokenizer.encode_narrow(text).tobytes()

    def to_dict(self) -> dict[str, Any]:
        """Return what `task_from_dict` rebuilds the task from, as JSON values."""
        return {"tokenizer": self.tokenizer.to_dict()}


class FindCharacters:
    """Gives the distinct code points of a text, as uint32."""

    def __call__(self, text: str) -> bytes:
        return distinct_code_points(text).astype("<u4").tobytes()

    def to_dict(self) -> dict[str, Any]:
        """Return what `task_from_dict` rebuilds the task from, as JSON values."""
        return {}


Task = Encode | FindCharacters


def task_from_dict(data: dict[str, Any]) -> Task:
    """Return the task whose `to_dict` gave the value."""
    return Encode(tokenizer_from_dict(data["tokenizer"])) if data else FindCharacters()
