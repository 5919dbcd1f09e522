"""Servers as processes, and the files that they load."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.decoders import from_shape
from benchmarks.processes import environment, failure, script_command
from gpt.checkpoint import Loaded
from gpt.checkpoint.folder import Checkpoint, write_checkpoint
from gpt.checkpoint.loading import weights_of
from gpt.config import Config, ModelConfig
from gpt.data import CharTokenizer
from gpt.errors import GPTError
from gpt.files import write_folder
from gpt.interop.gguf_file import write_gguf
from gpt.interop.hugging_face import export_files

ALPHABET = "\n !$&',-.3:;?" + "".join(chr(code) for start in ("A", "a") for code in range(ord(start), ord(start) + 26))
"""The 65 characters of Tiny Shakespeare."""
START_SECONDS = 120.0


def write_random_model(config: ModelConfig, folder: Path) -> Path:
    """Write a checkpoint of a model with random weights as `folder`, and return it."""
    model = from_shape("", config, 1).model
    run = Config().model_copy(update={"model": config})
    write_checkpoint(folder, Checkpoint(weights_of(model), {}, {}, run, CharTokenizer(ALPHABET)))
    return folder


def our_command(checkpoint: Path, kv_dtype: str) -> Callable[[int], list[str]]:
    """Return what makes the command of `scripts/serve.py` for a port."""
    options = ["--checkpoint", str(checkpoint), "--kv-dtype", kv_dtype, "--max-waiting", "100000", "--port"]
    return lambda port: [*script_command("serve"), *options, str(port)]


def write_for_transformers(loaded: Loaded, folder: Path) -> Path:
    """Write a model and its tokenizer as `folder`, as `transformers serve` loads them, and return it."""
    write_folder(folder, export_files(loaded.model, loaded.tokenizer, loaded.config.sample, ""))
    return folder


def transformers_command(folder: Path, *options: str) -> Callable[[int], list[str]]:
    """Return what makes the command of `transformers serve` for a port."""
    program = str(Path(sys.executable).with_name("transformers"))
    command = [program, "serve", str(folder), "--device", "cpu", "--host", "127.0.0.1", *options]
    return lambda port: [*command, "--port", str(port)]


def llama_cpp_command(loaded: Loaded, python: str, folder: Path) -> Callable[[int], list[str]]:
    """Write a model as a GGUF file; return what makes the command of llama.cpp's Python server for a port."""
    path = folder / "model.gguf"
    write_gguf(path, loaded.model, loaded.tokenizer, "float32", "peer")
    window, threads = loaded.model.config.block_size, torch.get_num_threads()
    options = {"model": path, "n_ctx": window, "n_threads": threads, "interrupt_requests": "false"}
    command = [python, "-m", "llama_cpp.server", "--host", "127.0.0.1"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return lambda port: [*command, "--port", str(port)]


@contextmanager
def start_server(name: str, command_for: Callable[[int], Sequence[str]]) -> Iterator[str]:
    """Start a server on a free port of 127.0.0.1; yield its URL once it answers, and end it afterwards.

    Raises:
        GPTError: it ended, or did not answer in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command, url = command_for(port), f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise GPTError(f"{name}: {failure(command, process.poll() or 0, log.read())}")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def first_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=START_SECONDS) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
