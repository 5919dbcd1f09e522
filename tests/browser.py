"""Pages in headless Chromium, with real keys and clicks, over the pipe of its debugging protocol."""

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
"""Above 3 and 4, the descriptors that Chromium reads commands from and writes answers to."""
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "x": 88}
CONTROL = 2


class NavigatedError(AssertionError):
    """The page was left before it answered."""


class Browser:
    """Headless Chromium, until it is closed. Its pages share a process, and no cookies, storage or cache."""

    def __init__(self, program: str, profile: Path) -> None:
        """Start Chromium or Chrome with an empty folder as its profile."""
        self._number = 0
        self._pending = b""
        self._pages: dict[str, Page] = {}
        self._start(program, profile)

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False, hurry: int = 0) -> "Page":
        """Open a page in a window of its own, and wait until it is loaded; its motion is `hurry` times as fast."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._pages[session] = page = Page(self, session, context)
        page.load(url, width, height, dark, hurry)
        return page

    def send(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Return the result of a command, to the browser or to the session of a page."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            page = self._pages.get(answer.get("sessionId", ""))
            if page is not None:
                page.notice(answer.get("method", ""), answer.get("params", {}))
        if answer.get("error", {}).get("message") == "Inspected target navigated or closed":
            raise NavigatedError(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def close(self) -> None:
        os.close(self._commands)  # which ends it
        os.close(self._answers)
        self._process.wait(PATIENCE)

    def _start(self, program: str, profile: Path) -> None:
        import fcntl  # not on Windows, where pipes have no numbers to pass on either

        pairs = (os.pipe(), os.pipe())
        (read_commands, commands), (answers, write_answers) = (
            [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, LOWEST_FREE) for end in pair] for pair in pairs
        )
        for end in (*pairs[0], *pairs[1]):
            os.close(end)

        def connect() -> None:
            os.dup2(read_commands, 3)
            os.dup2(write_answers, 4)

        options = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
        self._process = subprocess.Popen(
            [program, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            env={name: value for name, value in os.environ.items() if name != "TMPDIR"},  # sockets want short paths
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._commands, self._answers = commands, answers

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
        self.console: list[str] = []  # what was written to it, errors and exceptions included
        self.requests: list[str] = []  # addresses that the page asked for
        self._browser, self._session, self._context = browser, session, context

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
        hurried = f"{{ const set = setInterval; window.setInterval = (call, time) => set(call, time / {hurry or 1}); }}"
        self.send("Page.addScriptToEvaluateOnNewDocument", {"source": hurried})
        self.send("Page.navigate", {"url": url})
        self.wait_for('document.readyState === "complete"')

    def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of a command."""
        return self._browser.send(method, params, self._session)

    def notice(self, event: str, params: dict[str, Any]) -> None:
        """Keep what an event says of the console or of a request."""
        if event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(json.dumps(params))
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait until a JavaScript expression is true, also of the page that another one leads to."""
        until, holds = time.monotonic() + seconds, False
        while not holds:
            with suppress(NavigatedError):
                holds = self.run(condition)
            assert holds or time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.02)

    def violations(self) -> list[str]:
        """Return where the page breaks a rule of axe-core: the rule, then the elements."""
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
        described = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", {"type": "keyDown" if text else "rawKeyDown", **described, **text})
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", **described})

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse over an element, and click it."""
        place = self.run(
            f"(() => {{ const item = {selector}; item.scrollIntoView({{ block: 'center' }});"
            "const box = item.getBoundingClientRect();"
            "return { x: box.x + box.width / 2, y: box.y + box.height / 2 }; })()"
        )
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", {"type": kind, **place, **button})
