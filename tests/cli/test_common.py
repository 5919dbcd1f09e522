import os
import subprocess
import sys

import pytest

from gpt.cli.common import SPINS, run_command


@pytest.mark.parametrize(("given", "expected"), [(None, SPINS), ("123", "123")])
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", given or "")
    if given is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    assert run_command(lambda: int(os.environ["GOMP_SPINCOUNT"])) == int(expected)


@pytest.mark.parametrize("command", ["train", "sample", "evaluate", "explain", "bench"])
def test_a_command_does_not_load_torch_before_it_runs(command: str) -> None:
    """Its OpenMP library reads the environment when it is loaded."""
    code = f"import sys, gpt.cli.{command}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
