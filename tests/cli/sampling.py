"""What the tests of `scripts/sample.py` share."""

import pytest

from gpt.cli import sample


def text_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The output of the command, which succeeds."""
    assert sample.main([*options]) == 0
    return capsys.readouterr().out
