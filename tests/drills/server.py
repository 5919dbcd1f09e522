"""Send a server the largest requests that it allows, and show it damaged run folders: it has to
answer all others.
"""

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

MAX_SECONDS = 1.0
"""Until /health answers, whatever else the server does, on an idle machine; see `max_seconds`."""
MAX_BYTES = 1 << 30
"""Memory beside the model that docs/serving.md promises."""
NUM_CLIENTS = 4
"""Clients that send the same request at the same time."""
NUMBER = 250_000
"""About as many numbers or empty lists as a body of a megabyte can have."""
LONG = (CORPUS * 6000)[:1_000_000]
CROP = {"prompt": LONG, "long_prompt": "crop", "max_tokens": 1}
FIELDS = {f"{number:x}": 1 for number in range(90_000)}
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
LARGEST: dict[str, tuple[str, dict[str, Any]]] = {
    "cropped": (COMPLETIONS, CROP),
    "echoed with log-probabilities, 64 times": (
        COMPLETIONS,
        {**CROP, "echo": True, "logprobs": 0, "n": 64},
    ),
    "echoed with log-probabilities, 4 times": (
        COMPLETIONS,
        {**CROP, "echo": True, "logprobs": 20, "n": 4},
    ),
    "echoed, 4 times, as a stream": (COMPLETIONS, {**CROP, "echo": True, "n": 4, "stream": True}),
    "all log-probabilities": (
        COMPLETIONS,
        {"prompt": "It", "max_tokens": 4096, "logprobs": 20, "n": 3},
    ),
    "64 completions": (COMPLETIONS, {"prompt": "It", "max_tokens": 1000, "n": 64}),
    "64 prompts with log-probabilities": (
        COMPLETIONS,
        {"prompt": [[1] * 16] * 64, "max_tokens": 0, "echo": True, "logprobs": 20},
    ),
    "ids": (
        COMPLETIONS,
        {"prompt": [1] * NUMBER, "long_prompt": "crop", "echo": True, "max_tokens": 1},
    ),
    "wrong ids": (COMPLETIONS, {"prompt": [-1] * NUMBER}),
    "lists": (COMPLETIONS, {"prompt": "It", "user": [[]] * NUMBER}),
    "fields": (COMPLETIONS, {"prompt": "It", **FIELDS}),
    "biases": (COMPLETIONS, {"prompt": "It", "logit_bias": FIELDS}),
    "a chat": (CHAT, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
    "wrong parts of a chat": (CHAT, {"messages": [{"role": "user", "content": [{}] * NUMBER}]}),
    "tokenized": ("/tokenize", {"prompt": LONG}),
    "generated": ("/api/generate", {"prompt": LONG[:150_000], "max_tokens": 100}),
    "generated with all alternatives": (
        "/api/generate",
        {"prompt": "It", "max_tokens": 300, "alternatives": 4096},
    ),
    "read": ("/api/lens", {"text": LONG}),
}
"""Path and body of each request; the limits are those of `Limits`."""
QUICK = ("echoed with log-probabilities, 4 times", "tokenized", "fields")
"""Requests of the small scale."""


class Watch:
    """Asks for /health all the time, and remembers the longest wait for an answer."""

    def __init__(self, port: int) -> None:
        self.longest = 0.0
        self._port = port
        self._ended = threading.Event()
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
        """Stop asking, and return the longest wait in seconds."""
        self._ended.set()
        self._thread.join()
        return self.longest


def post(port: int, path: str, content: bytes) -> int:
    """Send a request, and return the status of its answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def memory(process: int, field: str) -> int:
    """Return the bytes of a process's memory: now ("VmRSS"), or its peak since `reset_peak`
    ("VmHWM").
    """
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    kibibytes = int(line.split()[1])
    return kibibytes << 10


def reset_peak(process: int) -> None:
    """Set the peak of a process's memory to what it has now."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")  # 5: see proc(5)


def max_seconds() -> float:
    """Return how long /health may take: longer by as many processes as want each core."""
    processes_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return MAX_SECONDS * max(1.0, processes_per_core)


def attack(process: int, port: int, path: str, content: bytes) -> str:
    """Send a request by several clients at once; return what is wrong, empty if nothing is."""
    reset_peak(process)
    before = memory(process, "VmRSS")
    watch = Watch(port)
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        statuses = list(clients.map(lambda _: post(port, path, content), range(NUM_CLIENTS)))
    longest = watch.end()
    used = memory(process, "VmHWM") - before
    if not set(statuses) <= {200, 400, 429}:
        return f"answers {statuses}"
    return exceeded(longest, used)


def exceeded(longest: float, used: int) -> str:
    """Return which limit of seconds or bytes was exceeded; empty if none was."""
    if longest > max_seconds():
        return f"/health answers after {longest:.2f} s"
    if used > MAX_BYTES:
        return f"{used >> 20} MiB"
    return ""


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


FAULTS: tuple[Callable[[Path], None], ...] = (
    make_pipe,
    make_endless,
    make_sparse,
    make_deep,
    make_dangling,
)
FILES = (
    "best.json",
    "last.json",
    "config.yaml",
    "metrics.jsonl",
    "*/step-*/tokenizer.json",
    "*/step-*/config.yaml",
)


def spoil(runs: Path, faults: tuple[Callable[[Path], None], ...]) -> list[str]:
    """Put copies of the run `tiny` beside it, each with a damaged file, and return their names."""
    names = []
    for fault in faults:
        for number, pattern in enumerate(FILES):
            name = f"{fault.__name__}-{number}"
            subprocess.run(["cp", "-r", runs / "tiny", runs / name], check=True)
            fault(next((runs / name).glob(pattern)))
            names.append(name)
    os.utime(runs / "tiny" / "last.json")  # so that it stays the newest run
    return names


def get(port: int, path: str) -> tuple[int, Any]:
    """Return the status of an answer, and its JSON."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content)


def visit(process: int, port: int, name: str) -> str:
    """Ask for all that there is of a damaged run, and for the lists; return what is wrong, empty if
    nothing is.

    Whatever is answered about the run itself, the run `tiny` has to be in the lists.
    """
    reset_peak(process)
    before = memory(process, "VmRSS")
    watch = Watch(port)
    for path in (
        f"/v1/models/{name}",
        f"/api/runs/{name}",
        f"/api/runs/{name}/snapshots/1?basis=1",
    ):
        get(port, path)
    post(port, COMPLETIONS, json.dumps({"model": name, "prompt": "It"}).encode())
    models_status, models = get(port, "/v1/models")
    runs_status, runs = get(port, "/api/runs")
    longest = watch.end()
    used = memory(process, "VmHWM") - before
    problem = exceeded(longest, used)
    if problem:
        return problem
    if models_status != 200 or "tiny" not in [model["id"] for model in models["data"]]:
        return f"/v1/models answers {models_status}, {models}"
    if runs_status != 200 or "tiny" not in runs["runs"]:
        return f"/api/runs answers {runs_status}, {runs}"
    return ""


def run(folder: Path, full: bool) -> Iterator[tuple[str, str, str]]:
    """Send all requests, or some, and visit all damaged runs, or some.

    The server has to end in the end.
    """
    train_tiny(folder)
    with serve_process(folder) as (process, url):
        port = int(url.rpartition(":")[2])
        # the log is read, since the server would wait if its pipe were full
        reader = threading.Thread(target=lambda: list(process.stderr or ()), daemon=True)
        reader.start()
        for name, (path, body) in LARGEST.items():
            if full or name in QUICK:
                content = json.dumps(body).encode()
                yield "largest requests", name, attack(process.pid, port, path, content)
        for name in spoil(folder / "runs", FAULTS if full else (make_dangling,)):
            yield "run folders of others", name, visit(process.pid, port, name)
        process.send_signal(signal.SIGTERM)
        wrong = ""
        try:
            code = process.wait(60)
            if code != 128 + signal.SIGTERM:
                wrong = f"exit code {code}"
        except subprocess.TimeoutExpired:
            wrong = "it does not end in 60 seconds"
        yield "ends", "after SIGTERM", wrong
