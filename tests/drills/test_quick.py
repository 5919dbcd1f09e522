"""Drills at their small scale."""

import os
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
