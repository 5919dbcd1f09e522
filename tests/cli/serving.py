"""A server in a process of its own, as a person starts it, and a client of it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from patience import PATIENCE
from server_process import serve_process


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """Start a server of the runs in a folder, and give a client of it."""
    with (
        serve_process(folder, "--backend", "eager", *options) as (process, url),
        httpx2.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        yield process, client
