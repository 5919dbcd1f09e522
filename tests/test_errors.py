"""What a library's error says in a message of ours."""

import json

import pytest

from gpt.system.errors import explained


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("muon"), "there is no 'muon'"),
        (KeyError(), "KeyError"),
        (OSError(28, "No space left on device", "a.txt"), "No space left on device"),
        (ValueError("first\nsecond"), "first"),
        (AttributeError(), "AttributeError"),
        (json.JSONDecodeError("Expecting value", "x", 0), "Expecting value: line 1 column 1 (char 0)"),
        (ValueError("\x1b[31m"), r"\x1b[31m"),
    ],
)
def test_an_error_is_explained_in_one_line_without_its_syntax(error: Exception, words: str) -> None:
    assert explained(error) == words
