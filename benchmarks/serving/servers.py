"""Servers as processes, and the files that they load."""

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.decoders import from_shape
from benchmarks.processes import environment, failure, script_command
from gpt.checkpoint.folder import Checkpoint, write_checkpoint
from gpt.checkpoint.loading import weights_of
from gpt.config import Config, ModelConfig
from gpt.data import CharTokenizer
from gpt.errors import GPTError

ALPHABET = "\n !$&',-.3:;?" + "".join(chr(code) for start in ("A", "a") for code in range(ord(start), ord(start) + 26))
"""The 65 characters of Tiny Shakespeare."""
START_SECONDS = 120.0


def write_random_model(config: ModelConfig, folder: Path) -> Path:
    """Write a checkpoint of a model with random weights as `folder`, and return it."""
    model = from_shape("", config, 1).model
    run = Config().model_copy(update={"model": config})
    write_checkpoint(folder, Checkpoint(weights_of(model), {}, {}, run, CharTokenizer(ALPHABET)))
    return folder


@contextmanager
def start_server(checkpoint: Path, kv_dtype: str) -> Iterator[str]:
    """Start `scripts/serve.py` on a free port of 127.0.0.1; yield its URL once it answers, and end it afterwards.

    Raises:
        GPTError: it ended, or did not answer in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--checkpoint", str(checkpoint), "--kv-dtype", kv_dtype, "--max-waiting", "100000", "--port", str(port)]
    command, url = [*script_command("serve"), *options], f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise GPTError(f"the server: {failure(command, process.poll() or 0, log.read())}")
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
