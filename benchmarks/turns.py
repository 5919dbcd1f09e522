"""Timing the steps of a training loop, in turns that somebody else asks for."""

import json
import sys
import time
from typing import TextIO

import torch

from gpt.accounting.machine import peak_memory_bytes
from gpt.training.monitor import Monitor


class Turns(Monitor):
    """Times the steps of a training loop, which calls `progress` after each: `warmup` of them, then `steps` a turn.

    After each turn it writes a line of JSON to `answers`; a line on standard input begins the next, and its end raises
    SystemExit.
    """

    def __init__(self, warmup: int, steps: int, answers: TextIO) -> None:
        self._left, self._steps, self._answers = warmup, steps, answers
        self._milliseconds: list[float] = []

    def begin(self, model: torch.nn.Module, dtype: str, blocks: str) -> None:
        """Note what is trained, in which type, and how its blocks run."""
        parameters = list(model.parameters())
        count, self._is_cuda = sum(parameter.numel() for parameter in parameters), parameters[0].is_cuda
        self._about = {"dtype": dtype, "blocks": blocks, "parameters": count}
        self._last = time.perf_counter()

    def progress(self, step: int, loss: float | None) -> None:
        """Note the time of a step; at the end of a turn, answer and wait, which counts in no step."""
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
