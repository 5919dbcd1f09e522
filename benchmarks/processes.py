"""Time other processes from start to end with cold caches, or ask them by lines of JSON."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpt.config.plugins import plugin_options
from gpt.system.errors import GPTError
from gpt.system.progress import Report, silent

ROOT = Path(__file__).resolve().parents[1]
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "cache",
}
"""Environment variables that name caches of compiled code, and the folder that each gets."""
Ask = Callable[..., dict[str, Any]]
"""Sends its keyword arguments and returns the answer; raises GPTError if the process ends or
answers with `error`.
"""


class Line(NamedTuple):
    """A line that a process printed, and the seconds from the start of the process to it."""

    seconds: float
    text: str


def script_command(name: str) -> list[str]:
    """Return the command that starts `scripts/<name>.py`, with the plugins of this process."""
    return [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *plugin_options()]


def environment(caches: Path | None = None, threads: int | None = None) -> dict[str, str]:
    """Return environment variables for a process that imports this package.

    Args:
        caches: a folder for caches of compiled code; an empty one makes all of them cold.
    """
    variables = dict(os.environ)
    path = os.environ.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    if caches is not None:
        for name, folder in CACHES.items():
            variables[name] = str(caches / folder)
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    return variables


def time_process(
    command: Sequence[str],
    caches: Path,
    folder: Path | None = None,
    threads: int | None = None,
    report: Report = silent,
) -> tuple[float, list[Line]]:
    """Run a process to its end, with cold caches; return its wall time in seconds and what it
    printed.

    Args:
        folder: where it runs.
        report: receives the lines in which trainers print a validation loss.

    Raises:
        GPTError: it failed; the message has its last line.
    """
    start = time.perf_counter()
    lines = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(caches, threads), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for text in process.stdout or ():
            lines.append(Line(time.perf_counter() - start, text.rstrip()))
            if text.startswith("step") and " val" in text:
                report(f"  {text.rstrip()}")
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        log = "\n".join(line.text for line in lines)
        raise GPTError(failure(command, process.returncode, log))
    return seconds, lines


def failure(command: Sequence[str], code: int, log: str) -> str:
    """Return one line about a process that failed, with the last line that it printed."""
    last = "it printed nothing"
    for line in log.splitlines():
        if line.strip():
            last = line.strip()
    reason = last.removeprefix("error: ")[:300]
    return f"{' '.join(command[1:3])} ... ended with {code}: {reason}"


@contextlib.contextmanager
def json_process(name: str, command: Sequence[str]) -> Iterator[Ask]:
    """Start a process that answers each line of JSON on its input with one on its output; yield a
    function to ask it.

    The process has to end at the end of its input. `name` is for error messages.
    """
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        pipe_in = process.stdin
        pipe_out = process.stdout
        assert pipe_in is not None
        assert pipe_out is not None

        def ask(**request: Any) -> dict[str, Any]:
            # if the process has ended, there is no answer, and its log says why
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(request), file=pipe_in, flush=True)
            line = pipe_out.readline()
            if not line:
                code = process.wait()
                log.seek(0)
                raise GPTError(f"{name}: {failure(command, code, log.read())}")
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise GPTError(f"{name}: {answer['error']}")
            return answer

        try:
            yield ask
        finally:
            with contextlib.suppress(BrokenPipeError):
                pipe_in.close()
