"""Open pages in headless Chromium, with real keys and clicks, through a pipe of its debugging
protocol.
"""

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from patience import PATIENCE
from programs import find_axe

LOWEST_FREE = 10
"""A file descriptor above 3 and 4, from which Chromium reads commands and to which it writes
answers.
"""
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "x": 88,
}
"""Windows' codes of keys, by which the protocol names them."""
CONTROL = 2
"""The bit of the Control key among modifiers."""


class NavigatedError(AssertionError):
    """The page was left before it answered."""


class Browser:
    """Headless Chromium, until it is closed.

    Its pages share a process, and no cookies, storage or cache.
    """

    def __init__(self, program: str, profile: Path) -> None:
        """Start Chromium or Chrome with an empty folder as its profile."""
        self._number = 0
        self._pending = b""
        self._pages: dict[str, Page] = {}
        self._start(program, profile)

    def open(
        self, url: str, width: int = 1280, height: int = 900, dark: bool = False, hurry: int = 0
    ) -> "Page":
        """Open a page in a window of its own, and wait until it is loaded.

        Args:
            dark: show the dark theme.
            hurry: let the page's timers run so many times as fast; 0 asks it for less motion.
        """
        context = self.send("Target.createBrowserContext")["browserContextId"]
        blank = {"url": "about:blank", "browserContextId": context}
        target = self.send("Target.createTarget", blank)["targetId"]
        attached = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        session = attached["sessionId"]
        page = Page(self, session, context)
        self._pages[session] = page
        page.load(url, width, height, dark, hurry)
        return page

    def send(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Send a command to the browser, or to the session of a page, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._receive()
        while answer.get("id") != self._number:
            # It is not the answer yet, but an event of some page.
            page = self._pages.get(answer.get("sessionId", ""))
            if page is not None:
                page.notice(answer.get("method", ""), answer.get("params", {}))
            answer = self._receive()
        if answer.get("error", {}).get("message") == "Inspected target navigated or closed":
            raise NavigatedError(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def close(self) -> None:
        """End the browser, which ends when it can read no more commands."""
        os.close(self._commands)
        os.close(self._answers)
        self._process.wait(PATIENCE)

    def _start(self, program: str, profile: Path) -> None:
        read_commands, commands = self._pipe()
        answers, write_answers = self._pipe()

        def connect() -> None:
            os.dup2(read_commands, 3)
            os.dup2(write_answers, 4)

        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        )
        environment = dict(os.environ)
        environment.pop("TMPDIR", None)  # a test's is too long for the path of a socket
        self._process = subprocess.Popen(
            [program, *options],
            preexec_fn=connect,
            pass_fds=(3, 4),
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._commands = commands
        self._answers = answers

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """Return the ends of a pipe, to read from and to write to, at descriptors from LOWEST_FREE
        on.
        """
        import fcntl  # Windows has no such module, and passes on no pipes by number

        low_ends = os.pipe()
        read, write = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, LOWEST_FREE) for end in low_ends]
        for end in low_ends:
            os.close(end)
        return read, write

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            piece = os.read(self._answers, 1 << 16)
            assert piece, "the browser ended"
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)


class Page:
    """An open page, until it is closed."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.console: list[str] = []  # messages, errors and exceptions
        self.requests: list[str] = []  # addresses that the page has asked for
        self._browser = browser
        self._session = session
        self._context = context

    def close(self) -> None:
        self._browser.send("Target.disposeBrowserContext", {"browserContextId": self._context})

    def load(self, url: str, width: int, height: int, dark: bool, hurry: int) -> None:
        """Show an address, see `Browser.open`."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "no-preference" if hurry else "reduce"}
        self.send("Emulation.setEmulatedMedia", {"features": [theme, motion]})
        hurried = f"window.setInterval = (call, time) => set(call, time / {hurry or 1});"
        source = f"{{ const set = setInterval; {hurried} }}"
        self.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        self.send("Page.navigate", {"url": url})
        self.wait_for('document.readyState === "complete"')

    def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of a command."""
        return self._browser.send(method, params, self._session)

    def notice(self, event: str, params: dict[str, Any]) -> None:
        """Record an event, if it is about the console or a request."""
        if event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(json.dumps(params))
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self.send("Runtime.evaluate", params)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait until a JavaScript expression is true.

        The page may lead to another one in the meantime.
        """
        deadline = time.monotonic() + seconds
        while True:
            with suppress(NavigatedError):
                if self.run(condition):
                    break
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def violations(self) -> list[str]:
        """Return the rules of axe-core that the page breaks, with the elements that break them."""
        self.send("Runtime.evaluate", {"expression": find_axe().read_text(encoding="utf-8")})
        named = "rule.id + ': ' + rule.nodes.map((node) => node.target.join(' ')).join(', ')"
        return self.run(f"axe.run().then(({{ violations }}) => violations.map((rule) => {named}))")

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def type(self, text: str) -> None:
        """Insert text where the focus is."""
        self.send("Input.insertText", {"text": text})

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key."""
        event = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": KEYS[key],
            "modifiers": modifiers,
        }
        down = {"type": "rawKeyDown", **event}
        if key == "Enter":  # which submits a form only where it writes a text
            down |= {"type": "keyDown", "text": "\r"}
        self.send("Input.dispatchKeyEvent", down)
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse over an element, given by a JavaScript expression, and click it if `click`
        says so.
        """
        place = self.run(
            f"(() => {{ const item = {selector}; item.scrollIntoView({{ block: 'center' }});"
            "const box = item.getBoundingClientRect();"
            "return { x: box.x + box.width / 2, y: box.y + box.height / 2 }; })()"
        )
        self.send("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
        if click:
            left = {**place, "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", {"type": "mousePressed", **left})
            self.send("Input.dispatchMouseEvent", {"type": "mouseReleased", **left})
