"""A server in a process of its own, as a person starts it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "serve.py"


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen, httpx2.Client]]:
    """Start a server of the runs in a folder, and give a client of it."""
    command = [sys.executable, str(SCRIPT), "--port", "0", "--backend", "eager", *options]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(("serving", "error")))
        url = re.search(r"http://[^/]+", line)
        assert url, line
        with httpx2.Client(base_url=url[0], timeout=60) as client:
            yield process, client
    finally:
        process.kill()
        process.communicate()
