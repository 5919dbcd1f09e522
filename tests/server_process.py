"""scripts/serve.py as a process of its own, so that its memory is its own; and the plainest client of it."""

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "serve.py"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@dataclass
class ServerProcess:
    """A server that runs.

    Attributes:
        process: of the server.
        port: at 127.0.0.1.
    """

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, sent: bytes) -> socket.socket:
        """Open a connection, and send something."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(sent)
        return connection

    def get(self, path: str) -> str:
        return self.ask("GET", path)[1]

    def post(self, content: bytes, **headers: str) -> tuple[int, str]:
        """Send a body, and return the status and the answer."""
        return self.ask("POST", "/v1/completions", content, {"Content-Type": "application/json", **headers})

    def metric(self, name: str) -> float:
        """Return the sum of a metric over all models."""
        lines = [line for line in self.get("/metrics").splitlines() if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def comes_to_rest(self) -> bool:
        """Wait until nothing runs or waits, and no block is in use; return False where that takes too long."""
        end = time.monotonic() + PATIENCE
        while any(self.metric(name) for name in ("gpt_blocks_in_use", "gpt_running", "gpt_waiting")):
            if time.monotonic() > end:
                return False
        return True

    def memory(self) -> int:
        """Return the resident bytes of the process; 0 where the system does not say."""
        status = Path(f"/proc/{self.process.pid}/status")
        found = re.search(r"VmRSS:\s*(\d+)", status.read_text()) if status.exists() else None
        return int(found[1]) << 10 if found else 0

    def ask(
        self, method: str, path: str, content: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Send a request, and return the status and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def request(**body: object) -> bytes:
    """Return a request for a completion as it is sent."""
    content = json.dumps({"prompt": "It was", **body}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


def vanish(connection: socket.socket) -> None:
    """Close a connection as a process does that is killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def insist(process: subprocess.Popen[Any], number: signal.Signals) -> int:
    """Send a signal until one is no echo and ends the process; return the exit code as a shell reports it."""
    while process.poll() is None:
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


@contextmanager
def serve_process(folder: Path, *options: str) -> Iterator[ServerProcess]:
    """Run the server in a folder until the context ends."""
    command = [sys.executable, str(SCRIPT), "--port", "0", *options]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(("serving", "error")))
        port = re.search(r"http://[^/]+:(\d+)", line)
        assert port, line
        yield ServerProcess(process, int(port[1]))
    finally:
        process.kill()
        process.communicate()
