"""Whole processes: how they are started, timed, and kept from what earlier ones left in caches."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import gpt
from gpt.errors import GPTError

ROOT = Path(gpt.__file__).resolve().parents[1]
"""Of the checkout, or the folder the package is installed in."""

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "XDG_CACHE_HOME": "cache"}
"""Variables that name caches of compiled code, and the folder each gets."""


def script_command(name: str) -> list[str]:
    """How to start `scripts/<name>.py`, or the same command where the package is installed without its scripts."""
    script = ROOT / "scripts" / f"{name}.py"
    if script.is_file():
        return [sys.executable, str(script)]
    return [sys.executable, "-c", f"import sys; from gpt.cli.{name} import main; sys.exit(main())"]


def module_command(name: str, *arguments: str) -> list[str]:
    """How to start a module of this package; needs `environment`."""
    return [sys.executable, "-m", name, *arguments]


def environment(
    caches: Path | None = None, threads: int | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a process that can import this package.

    Args:
        caches: an empty folder, if every cache of compiled code is to be cold.
        threads: of torch; None leaves it as it is.
        base: to start from; default: this process's own.
    """
    variables = dict(os.environ if base is None else base)
    path = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    if caches is not None:
        variables |= {name: str(caches / folder) for name, folder in CACHES.items()}
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    return variables


def time_process(command: Sequence[str], caches: Path, folder: Path | None = None, threads: int | None = None) -> float:
    """Wall seconds from the start of a process to its end.

    Args:
        command: words.
        caches: an empty folder, so that every cache of compiled code is cold.
        folder: to run in; default: this one.
        threads: of torch, where the command does not choose them itself.

    Raises:
        GPTError: it failed; the message has its last line.
    """
    variables = environment(caches, threads)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        start = time.perf_counter()
        result = subprocess.run(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
        seconds = time.perf_counter() - start
        if result.returncode != 0:
            log.seek(0)
            raise GPTError(failure(command, result.returncode, log.read()))
    return seconds


def read_process(command: Sequence[str]) -> str:
    """What a process prints.

    Raises:
        GPTError: it failed; the message has its last line.
    """
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise GPTError(failure(command, result.returncode, result.stderr))
    return result.stdout


def failure(command: Sequence[str], code: int, log: str) -> str:
    """One line on a process that failed."""
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1].strip().removeprefix("error: ")[:300] if lines else "it said nothing"
    return f"{' '.join(command[1:3])} ... ended with {code}: {last}"
