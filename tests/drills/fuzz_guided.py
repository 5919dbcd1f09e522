"""Fuzzing that is guided by coverage, with libFuzzer: an input that reaches new code is kept, and changed further."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from drills.frame import Tally
from patience import PATIENCE

NAMES = ("texts", "tokenizer files", "YAML", "stop strings")


def guide(folder: Path, tally: Tally, executions: int) -> None:
    """Attack each target a fixed number of times, or count those that are not possible without the extra `fuzz`."""
    for name in NAMES:
        if find_spec("atheris") is None:
            tally.count("kinds of them not possible here")
            continue
        command = [sys.executable, "-m", "drills.guided_targets", name, str(executions), str(folder)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            tally.count("hangs")
            tally.check(False, f"{name}, guided by coverage: not done after {PATIENCE:g} s")
            continue
        tally.count("guided by coverage", executions)
        if ended.returncode:
            tally.count("hangs" if "timeout after" in ended.stderr else "tracebacks")
            tally.check(False, f"{name}, guided by coverage: {(ended.stdout + ended.stderr)[-2500:]}")
