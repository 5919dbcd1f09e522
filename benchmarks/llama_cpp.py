"""Decode by llama.cpp with the weights of a model of this package that has the shape of Llama, in
another process.
"""

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.processes import json_process
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.extras.export.gguf_file import write_gguf
from gpt.model import GPT
from gpt.system.errors import ConfigError

WORKER = Path(__file__).with_name("llama_cpp_worker.py")
WEIGHTS = {"F32": "float32", "Q8_0": "q8_0"}
"""Names of formats in `write_gguf`, by those of llama.cpp."""
CACHES = ("F16", "F32")
"""Types of the key/value cache; which one is faster depends on the model's width."""


def check_llama_cpp(python: str) -> None:
    """Raise ConfigError if a Python cannot import what the worker needs."""
    command = [python, "-c", "import llama_cpp"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        problem = str(error)
    else:
        if result.returncode == 0:
            return
        problem = result.stderr.strip().splitlines()[-1]
    remedy = "pip install llama-cpp-python (compiles for 20 minutes), or name a Python that has it"
    raise ConfigError(f"--llama-cpp {python}: {problem}; {remedy}")


class LlamaCpp:
    """llama.cpp's decoding loop, by its C interface.

    Args:
        kind: the format of the matrices, F32 or Q8_0.
        python: a Python that has `llama_cpp`.
        stack: ends the process.

    Raises:
        GPTError: llama.cpp cannot run the model.
    """

    def __init__(self, model: GPT, kind: str, python: str, stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpt-bench-"))
        path = Path(folder) / "model.gguf"
        # the file must have a vocabulary, but only ids are exchanged
        any_characters = CharTokenizer(map(chr, range(model.vocab_size)))
        write_gguf(path, model, any_characters, WEIGHTS[kind], "peer")
        command = [python, "-P", str(WORKER), str(path), str(torch.get_num_threads())]
        self._ask = stack.enter_context(json_process("llama.cpp", command))

    def logits(self, idx: Tensor) -> Tensor:
        """Map ids (1, T) to logits (1, T, V)."""
        answer = self._ask(prompts=idx.tolist(), steps=0)
        return torch.tensor([answer["logits"]])

    def decode(self, idx: Tensor, params: SamplingParams, cache: str) -> list[float]:
        """Sample after ids (B, T); return the clock at the start, after each step, at the end."""
        answer = self._ask(
            prompts=idx.tolist(),
            steps=params.max_new_tokens,
            temperature=params.temperature,
            cache=cache,
        )
        ticks: list[float] = answer["ticks"]
        return ticks
