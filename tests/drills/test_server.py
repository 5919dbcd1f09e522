"""The server under attack: afterwards it answers, nothing is in use, and its memory is what it was."""

from pathlib import Path

import pytest

from drills.server import run

pytestmark = pytest.mark.slow


def test_attacks_pass_and_leave_nothing_behind(tmp_path: Path) -> None:
    assert run(tmp_path, False).failures == []
