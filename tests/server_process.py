"""Run scripts/serve.py as a process of its own, whose memory can be measured."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "serve.py"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def post_bytes(path: str = "/v1/completions", **body: object) -> bytes:
    """Return the bytes of a whole request."""
    content = json.dumps(body).encode()
    head = HEAD.replace(b"/v1/completions", path.encode())
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


def request(**body: object) -> bytes:
    """Return the bytes of a request for a completion, of a short prompt unless the body has
    another.
    """
    fields: dict[str, Any] = {"prompt": "It was", **body}
    return post_bytes(**fields)


@contextmanager
def serve_process(
    folder: Path, *options: str, **popen: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the server in a folder until the context ends; yield its process and its URL."""
    command = [sys.executable, str(SCRIPT), "--port", "0", *options]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **popen)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(("serving", "error")))
        match = re.search(r"http://[^/]+:(\d+)", line)
        assert match, line
        yield process, f"http://127.0.0.1:{match[1]}"
    finally:
        process.kill()
        process.communicate()
