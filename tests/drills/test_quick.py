"""Drills at their small scale, and the page that has their figures."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["kill", "disk", "server"])
def test_nothing_fails(name: str) -> None:
    """In a process of its own, which has no threads and may fork."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    command = [sys.executable, "-m", "drills", "--quick", "--drills", name]
    result = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_tests_that_the_page_names_are_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[a-z_/]+\.py)`", page)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).is_file()] == []
