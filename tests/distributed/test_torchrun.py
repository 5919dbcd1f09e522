"""The launcher that users start: a killed process ends the others, and all start again from the last checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.cli import train
from patience import PATIENCE

TESTS = Path(__file__).resolve().parents[1]


def test_a_killed_process_ends_all_and_torchrun_starts_them_again(workplace: Path) -> None:
    overrides = ["train.eval_interval=2", "run.threads=1"]
    assert train.main(["--config", "tiny.yaml", "run.name=alone", *overrides]) == 0
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += [str(TESTS / "distributed" / "dies_once.py"), "--config", "tiny.yaml", "--resume", "auto", *overrides]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("\nerror: another process of this training has ended; continue from the last ") == 1
    assert ended.stderr.count(f"resuming {Path('runs/tiny/checkpoints/step-000004')}") == 1
    assert "Traceback" not in ended.stderr
    assert losses(Path("runs/tiny")) == pytest.approx(losses(Path("runs/alone")), rel=1e-6)


def losses(run: Path) -> dict[tuple[int, str], float]:
    """The losses of a run by step and kind; a step stands there once."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [
        ((line["step"], name), line[name]) for line in lines for name in ("train/loss", "val/loss") if name in line
    ]
    assert len(found) == len(dict(found))
    return dict(found)
