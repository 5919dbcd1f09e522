"""The largest requests that a server allows, and run folders of others: it answers everybody else all the same."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from drills.leftovers import train_tiny
from patience import PATIENCE
from server_process import serve_process
from tiny import CORPUS

MOST_SECONDS = 1.0
"""Until /health answers, whatever else the server does; as many times longer as others want each core."""
MOST_BYTES = 1 << 30
"""Memory of docs/serving.md, beside the model."""
AT_ONCE = 4
"""Clients that send the same request at a time."""
NUMBER = 250_000
LONG = (CORPUS * 6000)[:1_000_000]
CROP = {"prompt": LONG, "long_prompt": "crop", "max_tokens": 1}
FIELDS = {f"{number:x}": 1 for number in range(90_000)}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LARGEST: dict[str, tuple[str, dict[str, Any]]] = {
    "cropped": (COMPLETIONS, CROP),
    "echoed with log-probabilities, 64 times": (COMPLETIONS, {**CROP, "echo": True, "logprobs": 0, "n": 64}),
    "echoed with log-probabilities, 4 times": (COMPLETIONS, {**CROP, "echo": True, "logprobs": 20, "n": 4}),
    "echoed, 4 times, as a stream": (COMPLETIONS, {**CROP, "echo": True, "n": 4, "stream": True}),
    "all log-probabilities": (COMPLETIONS, {"prompt": "It", "max_tokens": 4096, "logprobs": 20, "n": 3}),
    "64 completions": (COMPLETIONS, {"prompt": "It", "max_tokens": 1000, "n": 64}),
    "64 prompts with log-probabilities": (
        COMPLETIONS,
        {"prompt": [[1] * 16] * 64, "max_tokens": 0, "echo": True, "logprobs": 20},
    ),
    "ids": (COMPLETIONS, {"prompt": [1] * NUMBER, "long_prompt": "crop", "echo": True, "max_tokens": 1}),
    "wrong ids": (COMPLETIONS, {"prompt": [-1] * NUMBER}),
    "lists": (COMPLETIONS, {"prompt": "It", "user": [[]] * NUMBER}),
    "fields": (COMPLETIONS, {"prompt": "It", **FIELDS}),
    "biases": (COMPLETIONS, {"prompt": "It", "logit_bias": FIELDS}),
    "a chat": (CHAT, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
    "wrong parts of a chat": (CHAT, {"messages": [{"role": "user", "content": [{}] * NUMBER}]}),
    "tokenized": ("/tokenize", {"prompt": LONG}),
    "generated": ("/api/generate", {"prompt": LONG[:150_000], "max_tokens": 100}),
    "generated with all alternatives": ("/api/generate", {"prompt": "It", "max_tokens": 300, "alternatives": 4096}),
    "read": ("/api/lens", {"text": LONG}),
}
QUICK = ("echoed with log-probabilities, 4 times", "tokenized", "fields")


class Watch:
    """Asks for /health all the time, and remembers the longest wait for an answer."""

    def __init__(self, port: int) -> None:
        self.longest, self._port, self._ended = 0.0, port, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        while not self._ended.wait(0.01):
            start = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.longest = max(self.longest, time.monotonic() - start)
        connection.close()

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        return self.longest


def post(port: int, path: str, content: bytes) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def memory(process: int, field: str) -> int:
    """Return the bytes of a process's memory: now ("VmRSS"), or at most since `forget_peak` ("VmHWM")."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def forget_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")


def most_seconds() -> float:
    return MOST_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def attack(process: int, port: int, path: str, content: bytes) -> str:
    """Send a request several times at once; return what is wrong."""
    forget_peak(process)
    before, watch = memory(process, "VmRSS"), Watch(port)
    with ThreadPoolExecutor(AT_ONCE) as clients:
        statuses = list(clients.map(lambda _: post(port, path, content), range(AT_ONCE)))
    longest, used = watch.end(), memory(process, "VmHWM") - before
    if not set(statuses) <= {200, 400, 429}:
        return f"answers {statuses}"
    if longest > most_seconds():
        return f"/health answers after {longest:.2f} s"
    return f"{used >> 20} MiB" if used > MOST_BYTES else ""


def make_pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def make_endless(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def make_sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(3 << 30)


def make_deep(file: Path) -> None:
    file.write_bytes(b"[" * 2_000_000)


def make_dangling(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("nowhere")


FAULTS: tuple[Callable[[Path], None], ...] = (make_pipe, make_endless, make_sparse, make_deep, make_dangling)
FILES = ("best.json", "last.json", "config.yaml", "metrics.jsonl", "*/step-*/tokenizer.json", "*/step-*/config.yaml")


def spoil(runs: Path, faults: tuple[Callable[[Path], None], ...]) -> list[str]:
    """Put copies of the run `tiny` beside it, each with one file at fault, and return their names."""
    names = []
    for fault in faults:
        for number, pattern in enumerate(FILES):
            name = f"{fault.__name__}-{number}"
            subprocess.run(["cp", "-r", runs / "tiny", runs / name], check=True)
            fault(next((runs / name).glob(pattern)))
            names.append(name)
    os.utime(runs / "tiny" / "last.json")
    return names


def get(port: int, path: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content)


def visit(process: int, port: int, name: str) -> str:
    """Ask for all that there is of a run; return what is wrong."""
    forget_peak(process)
    before, watch = memory(process, "VmRSS"), Watch(port)
    paths = (f"/v1/models/{name}", f"/api/runs/{name}", f"/api/runs/{name}/snapshots/1?basis=1")
    statuses = [get(port, path)[0] for path in paths]
    statuses.append(post(port, COMPLETIONS, json.dumps({"model": name, "prompt": "It"}).encode()))
    models, runs = get(port, "/v1/models"), get(port, "/api/runs")
    longest, used = watch.end(), memory(process, "VmHWM") - before
    if longest > most_seconds():
        return f"/health answers after {longest:.2f} s"
    if used > MOST_BYTES:
        return f"{used >> 20} MiB"
    if models[0] != 200 or "tiny" not in [model["id"] for model in models[1]["data"]]:
        return f"/v1/models answers {models}"
    return "" if runs[0] == 200 and "tiny" in runs[1]["runs"] else f"/api/runs answers {runs}"


def run(folder: Path, full: bool) -> Iterator[tuple[str, str, str]]:
    train_tiny(folder)
    with serve_process(folder) as (process, url):
        port = int(url.rpartition(":")[2])
        logged = threading.Thread(target=lambda: list(process.stderr or ()), daemon=True)  # else its pipe fills
        logged.start()
        for name, (path, body) in LARGEST.items():
            if full or name in QUICK:
                yield "largest requests", name, attack(process.pid, port, path, json.dumps(body).encode())
        for name in spoil(folder / "runs", FAULTS if full else (make_dangling,)):
            yield "run folders of others", name, visit(process.pid, port, name)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            code = 0
        yield "ends", "after SIGTERM", "" if code == 143 else f"exit code {code}"
