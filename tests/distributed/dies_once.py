"""`scripts/train.py`, whose rank 1 is killed in the middle of a step, unless torchrun has started it again."""

import os
import signal
import sys
from typing import Any
from unittest.mock import patch

from gpt.cli import train
from gpt.training.step import Stepper
from training.sessions import quick_beginnings

KILLED_AT = 4
step = Stepper.step


def step_or_die(stepper: Stepper, number: int, *arguments: Any) -> Any:
    """Do a step, or be killed."""
    if number == KILLED_AT and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(stepper, number, *arguments)


if __name__ == "__main__":
    with patch.object(Stepper, "step", step_or_die), quick_beginnings():
        sys.exit(train.main())
