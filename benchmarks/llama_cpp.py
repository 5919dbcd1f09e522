"""llama.cpp as a peer that decodes with the weights of a Llama-shaped model of ours, in a process of its own."""

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
CACHES = ("F16", "F32")
"""Types of the key/value cache; which one is faster depends on the model's width."""


def check_llama_cpp(python: str) -> None:
    """Raise ConfigError if a Python cannot import what the worker does."""
    try:
        result = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, text=True, check=False)
        missing = result.stderr.strip().splitlines()[-1] if result.returncode else ""
    except OSError as error:
        missing = str(error)
    if missing:
        needed = "pip install llama-cpp-python (compiles for 20 minutes), or name a Python that has it"
        raise ConfigError(f"--llama-cpp {python}: {missing}; {needed}")


class LlamaCpp:
    """llama.cpp's decoding loop, by its C interface; `kind` of the matrices is F32 or Q8_0; `stack` ends the process.

    Raises:
        GPTError: llama.cpp cannot run the model.
    """

    def __init__(self, model: GPT, kind: str, python: str, stack: ExitStack) -> None:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpt-bench-"))) / "model.gguf"
        any_characters = CharTokenizer(map(chr, range(model.vocab_size)))
        write_gguf(path, model, any_characters, WEIGHTS[kind], "peer")
        command = [python, "-P", str(WORKER), str(path), str(torch.get_num_threads())]
        self._ask = stack.enter_context(json_process("llama.cpp", command))

    def logits(self, idx: Tensor) -> Tensor:
        """Map ids (1, T) to logits (1, T, V)."""
        return torch.tensor([self._ask(prompts=idx.tolist(), steps=0)["logits"]])

    def decode(self, idx: Tensor, params: SamplingParams, cache: str) -> list[float]:
        """Sample after ids (B, T); return the clock at the start, after each step, and at the end."""
        steps, temperature = params.max_new_tokens, params.temperature
        request = {"prompts": idx.tolist(), "steps": steps, "temperature": temperature, "cache": cache}
        ticks: list[float] = self._ask(**request)["ticks"]
        return ticks
