"""Decode as gpt-fast does, with the same model in another process: a static cache, and one function
for a token that torch.compile fuses and replays as a CUDA graph.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.hugging_face import check_agreement
from benchmarks.processes import json_process
from gpt.config import SamplingParams
from gpt.model import GPT

NAME = "torch.compile"


class Compiled:
    """The decoding loop of `compiled_worker.py`.

    Args:
        stack: ends the process.

    Raises:
        ConfigError: it computes other logits than the model.
        GPTError: it cannot run, or cannot compile the model.
    """

    def __init__(self, model: GPT, stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpt-bench-"))
        path = Path(folder) / "model.pt"
        device = str(next(model.parameters()).device)
        saved = {"config": model.config.model_dump(), "weights": model.state_dict()}
        torch.save(saved, path)
        command = [sys.executable, "-m", "benchmarks.compiled_worker", str(path), device]
        self._ask = stack.enter_context(json_process(NAME, command))
        check_agreement(NAME, self.logits, model)

    def logits(self, idx: Tensor) -> Tensor:
        """Map ids (1, T) to logits (1, T, V) on the device of the ids."""
        answer = self._ask(prompts=idx.tolist(), steps=0, temperature=0.0)
        return torch.tensor(answer["logits"], device=idx.device)

    def decode(self, idx: Tensor, params: SamplingParams) -> list[float]:
        """Sample after ids (B, T); return the clock at the start and at the end."""
        answer = self._ask(
            prompts=idx.tolist(), steps=params.max_new_tokens, temperature=params.temperature
        )
        ticks: list[float] = answer["ticks"]
        return ticks
