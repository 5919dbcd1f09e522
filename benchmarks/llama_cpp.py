"""llama.cpp as a peer that decodes with the weights of a Llama-shaped model of ours, in a process of its own."""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.conversation import Conversation
from benchmarks.gguf_model import gguf_header, gguf_tensors
from gpt.config import SamplingParams
from gpt.errors import ConfigError, GPTError
from gpt.model import GPT
from gpt.report import Report

WORKER = Path(__file__).with_name("llama_cpp_worker.py")
CACHES = ("F16", "F32")
"""Types of keys and values; which one is quicker depends on the model's width."""


def check_llama_cpp(python: str) -> None:
    """Make sure that an interpreter has what the worker imports.

    Raises:
        ConfigError: it has not, or there is no such interpreter.
    """
    try:
        result = subprocess.run([python, "-c", "import gguf, llama_cpp"], capture_output=True, text=True, check=False)
        missing = result.stderr.strip().splitlines()[-1:] if result.returncode else []
    except OSError as error:
        missing = [str(error)]
    for line in missing:
        raise ConfigError(
            f"--llama-cpp {python}: {line}; pip install llama-cpp-python gguf (it compiles for up to 20 minutes), "
            "or name the Python that has them"
        )


class LlamaCpp:
    """llama.cpp's own decoding loop, by its C interface.

    Keys and values are of the type in `CACHES` that was quicker when a size of batch first came.

    Args:
        model: for which `gguf_model.is_llama` holds.
        kind: of the matrices, F32 or Q8_0.
        python: interpreter that has `llama_cpp`.
        report: told where llama.cpp dies with the layout of weights it prefers.

    Raises:
        GPTError: llama.cpp cannot run the model.
    """

    def __init__(self, model: GPT, kind: str, python: str, report: Report) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpt-bench-")
        archive = Path(self._folder.name) / "model.npz"
        np.savez(archive, header=json.dumps(gguf_header(model.config)), **gguf_tensors(model))  # type: ignore[arg-type]
        command = [python, "-P", str(WORKER), str(archive), kind, str(torch.get_num_threads())]
        try:
            self._process, weights = self._start([*command, "1"]), "repacked"
        except GPTError as error:
            report(f"{error}; again without repacked weights")
            self._process, weights = self._start([*command, "0"]), "as in the file"
        self._about = f"llama-cpp-python {self._process.greeting['version']}, weights {weights}"
        self._caches: dict[tuple[int, int], str] = {}

    @staticmethod
    def _start(command: list[str]) -> Conversation:
        process = Conversation("llama.cpp", command)
        try:
            process.ask(do="logits", tokens=[0, 0])  # where its AMX kernels die if GCC 12 compiled them
        except GPTError:
            process.close()
            raise
        return process

    def close(self) -> None:
        """End its process."""
        self._process.close()
        self._folder.cleanup()

    def about(self, batch: int, prompt: int) -> str:
        """Version, and what was chosen for prompts of that size."""
        cache = self._caches.get((batch, prompt))
        return self._about if cache is None else f"{self._about}, keys and values {cache}"

    def logits(self, idx: Tensor) -> Tensor:
        """(1, T) -> (1, T, V)."""
        return torch.tensor([self._process.ask(do="logits", tokens=idx[0].tolist())["logits"]])

    def greedy(self, idx: Tensor, steps: int) -> Tensor:
        """The most likely continuations of (B, T) ids: (B, steps)."""
        return torch.tensor(self._ask(idx, SamplingParams(max_new_tokens=steps, temperature=0), "F32")["tokens"]).T

    def decode(self, idx: Tensor, params: SamplingParams) -> list[float]:
        """Sample `max_new_tokens` for every row; clock at the beginning, after each step and at the end."""
        size = (idx.size(0), idx.size(1))
        if size not in self._caches:
            self._caches[size] = min(CACHES, key=lambda cache: self._best_seconds(idx, params, cache))
        return self._ask(idx, params, self._caches[size])["ticks"]

    def _best_seconds(self, idx: Tensor, params: SamplingParams, cache: str) -> float:
        runs = [self._ask(idx, params, cache)["ticks"] for _ in range(2)]
        return min(ticks[-1] - ticks[0] for ticks in runs)

    def _ask(self, idx: Tensor, params: SamplingParams, cache: str) -> dict[str, list]:  # type: ignore[type-arg]
        return self._process.ask(
            do="generate",
            prompts=idx.tolist(),
            steps=params.max_new_tokens,
            temperature=params.temperature,
            cache=cache,
        )
