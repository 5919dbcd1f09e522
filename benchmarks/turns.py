"""The measured side of a step measurement: a training loop that stops when its turn is over."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt.accounting.machine import peak_memory_bytes

Ask = Callable[[dict[str, Any]], bool]
"""Takes what was measured; waits, and says whether there is another turn."""


class Turns:
    """Times the steps of a training loop, which goes on as long as `step_done` says so.

    The first turn is the warm-up. The wait between two turns counts in no step.

    Args:
        warmup: steps of the first turn.
        steps: of every other one.
        ask: told of every turn that is over.
        about: goes with every answer; may be filled in until the first one.
        synchronize: waits for the device.
        clock: seconds.
    """

    def __init__(
        self,
        warmup: int,
        steps: int,
        ask: Ask,
        about: dict[str, Any],
        synchronize: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._left, self._steps, self._ask, self.about = warmup, steps, ask, about
        self._synchronize, self._clock = synchronize, clock
        self._milliseconds: list[float] = []
        self._last = clock()

    def step_done(self) -> bool:
        """Note the time of one step; whether to make another."""
        self._synchronize()
        now = self._clock()
        self._milliseconds.append((now - self._last) * 1000)
        self._last = now
        if len(self._milliseconds) < self._left:
            return True
        goes_on = self._ask({**self.about, "milliseconds": self._milliseconds})
        self._milliseconds, self._left, self._last = [], self._steps, self._clock()
        return goes_on


def resident_bytes() -> int:
    """Memory of this process in RAM, now; 0 where the system does not say."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Most memory this process had in RAM.

    On Linux not from getrusage: its figure begins with that of the process that started this one.
    """
    import torch

    return _status("VmHWM") or peak_memory_bytes(torch.device("cpu"))


def _status(key: str) -> int:
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return read_status(text, key)


def read_status(text: str, key: str) -> int:
    """Bytes of a line such as `VmRSS:  123 kB`; 0 if there is none."""
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines[key].split()[0]) * 1024 if key in lines else 0
