"""Pages in headless Firefox, by the WebDriver BiDi protocol over a WebSocket (RFC 6455)."""

import base64
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, BinaryIO, Self

from patience import PATIENCE

TEXT = 0x81
"""The first byte of a frame that is a whole text."""
MASK = b"mask"
PREFERENCES = """
user_pref("app.normandy.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("services.settings.server", "data:,#remote-settings-dummy/v1");
"""
"""Of a browser that asks nothing of anyone by itself."""


class Firefox:
    """Headless Firefox with one page, until the context ends.

    Attributes:
        console: what was written to the console, errors and exceptions included.

    Args:
        program: Firefox.
        profile: an empty folder.
    """

    def __init__(self, program: str, profile: Path) -> None:
        (profile / "user.js").write_text(PREFERENCES, encoding="utf-8")
        self.console: list[str] = []
        self._number = 0
        self._process = subprocess.Popen(
            [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        said = ""
        while (found := re.search(r"listening on ws://127\.0\.0\.1:(\d+)\n", said)) is None:
            said += (line := self._process.stderr.readline())
            assert line, f"Firefox ended: {said}"
        Thread(target=self._process.stderr.read, daemon=True).start()  # a full pipe would stop it
        self._socket, self._answers = _connected(int(found[1]))
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self._context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._answers.close()
        self._socket.close()

    def open(self, url: str, width: int, height: int, zoom: float = 1) -> None:
        """Load an address in a window of this many device pixels, of which a CSS pixel has `zoom`."""
        size = {"width": round(width / zoom), "height": round(height / zoom)}
        self.send("browsingContext.setViewport", context=self._context, viewport=size, devicePixelRatio=float(zoom))
        self.send("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression that is text, a number or a truth value, or a promise of one."""
        target = {"context": self._context}
        found = self.send("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return found["result"].get("value")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command."""
        self._number += 1
        self._write(json.dumps({"id": self._number, "method": method, "params": params}).encode())
        while (answer := json.loads(self._read())).get("id") != self._number:
            if answer.get("method") == "log.entryAdded":
                self.console.append(json.dumps(answer["params"]))
        assert answer["type"] == "success", answer
        return answer["result"]

    def _write(self, content: bytes) -> None:
        """Send a text, masked as a client must; Firefox takes a mask of zeros for none."""
        size = len(content)
        length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
        masked = bytes(byte ^ MASK[place % 4] for place, byte in enumerate(content))
        self._socket.sendall(bytes([TEXT]) + length + MASK + masked)

    def _read(self) -> bytes:
        """Receive a text, which may come in several frames."""
        content, is_last = b"", False
        while not is_last:
            kind, size = self._answers.read(2)
            is_last = kind >= 0x80
            if size >= 126:
                size = int.from_bytes(self._answers.read(2 if size == 126 else 8), "big")
            content += self._answers.read(size)
        return content


def _connected(port: int) -> tuple[socket.socket, BinaryIO]:
    """Open a WebSocket to a browser of this machine; return it, and what comes from it."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}"
    connection.sendall(f"GET /session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{upgrade}\r\n\r\n".encode())
    answers = connection.makefile("rb")
    assert b" 101 " in answers.readline()
    while answers.readline().strip():
        pass
    return connection, answers
