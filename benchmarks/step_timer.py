"""A clock for the steps of a training loop, read by another process."""

import json
import sys
import time
from typing import TextIO

import torch

from gpt.accounting.machine import peak_memory_bytes
from gpt.training.monitor import Monitor


class StepTimer(Monitor):
    """Times the steps of a training loop, which calls `progress` after each.

    It writes a line of JSON to `answers` after `warmup` steps, and then after every `steps`; training pauses until a
    line on standard input asks for more. The end of the input raises SystemExit.
    """

    def __init__(self, warmup: int, steps: int, answers: TextIO) -> None:
        self._left, self._steps, self._answers = warmup, steps, answers
        self._milliseconds: list[float] = []

    def begin(self, model: torch.nn.Module, dtype: str, blocks: str) -> None:
        """Start the clock; what is trained, in which type and by which blocks becomes part of every answer."""
        parameters = list(model.parameters())
        count, self._is_cuda = sum(parameter.numel() for parameter in parameters), parameters[0].is_cuda
        self._about = {"dtype": dtype, "blocks": blocks, "parameters": count}
        self._last = time.perf_counter()

    def progress(self, step: int, loss: float | None) -> None:
        """Note the time of a step; answer and wait when all requested steps are done, off the clock."""
        if self._is_cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._milliseconds.append((now - self._last) * 1000)
        self._last = now
        if len(self._milliseconds) < self._left:
            return
        peak = peak_memory_bytes(torch.device("cpu"))
        answer = {**self._about, "peak_bytes": peak, "milliseconds": self._milliseconds}
        print(json.dumps(answer), file=self._answers, flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        self._milliseconds, self._left, self._last = [], self._steps, time.perf_counter()
