"""A day of requests in an hour: of every kind, hostile ones among them, and one in a hundred clients vanishes."""

import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

import gpt
from drills.frame import Drill, Tally, repeats
from drills.tiny_run import train_tiny
from gpt.checkpoint import load_trained
from patience import PATIENCE
from server_process import HEAD, ServerProcess, request, serve_process, vanish

CLIENTS = 16
EVERY = 100
"""Of so many clients one vanishes."""
IDLE = 1100
"""Connections that say nothing all the time; the server keeps fewer."""
SHARES = {"completion": 30, "stream": 27, "page": 15, "reading": 10, "mistake": 10, "metrics": 5, "hostile": 3}
"""Kinds of requests, and how many of a hundred there are."""
VARIANTS = 40
"""Different requests of each kind."""
MAX_IDLE = 1.0
"""Seconds after which a connection is not used again: the server closes those that are idle for long."""
VIEWS_FULL = "texts wait to be looked into"
"""The one refusal that is right: fewer readings wait than there are clients."""
MEGABYTE = 1 << 20
MEMORY = 64 * MEGABYTE
"""Bytes that all of it may leave behind: what the allocator keeps differs from run to run."""
LONG = {"max_tokens": 4000, "seed": 1}
MISTAKES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/v1/completions", {"prompt": "It", "max_tokens": -1}, 400),
    ("/v1/completions", {"prompt": "It", "temperature": "warm"}, 400),
    ("/v1/completions", {"prompt": "It", "model": "absent"}, 404),
    ("/v1/completions", {"prompt": [1000]}, 400),
    ("/v1/completions", {"prompt": [{}] * 100_000}, 400),
    ("/api/generate", {"prompt": "It", "known": -1}, 400),
    ("/api/attention", {"text": ""}, 400),
    ("/api/nothing", {}, 404),
)


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        kind: one of `SHARES`.
        path: of the URL.
        body: of the request; None: it is a GET.
        status: that it is answered with.
        text: in the answer; None: not compared.
        tokens: that are generated.
    """

    kind: str
    path: str
    body: dict[str, Any] | None
    status: int = 200
    text: str | None = None
    tokens: int = 0


def make_asks(run: Path, server: ServerProcess) -> dict[str, list[Ask]]:
    """Return different requests of each kind, with what `gpt.generate` and an idle server answer."""
    chance, loaded = Random(0), load_trained(run, run.parent, torch.device("cpu"))
    asks: dict[str, list[Ask]] = {kind: [] for kind in SHARES}
    asks["metrics"] = [Ask("metrics", "/metrics", None)]
    asks["mistake"] = [Ask("mistake", *mistake) for mistake in MISTAKES]
    for kind in ("completion", "stream", "page"):
        for seed in range(VARIANTS):
            prompt, count = chance.choice(("It was the", "keys", "T", "so " * 30)), chance.randint(1, 60)
            sampling = {"seed": seed, "temperature": chance.choice((0, 0.8, 1.2))}
            body = {"prompt": prompt, "max_tokens": count, **sampling}
            if kind != "page":
                body |= {"stream": kind == "stream", "overflow": "slide", "long_prompt": "crop"}
            options = {"overflow": "slide", "long_prompt": "crop", "max_new_tokens": count, **sampling}
            text = gpt.generate(loaded.model, loaded.tokenizer, prompt, **options)
            path = "/api/generate" if kind == "page" else "/v1/completions"
            asks[kind].append(Ask(kind, path, body, 200, text, count))
    headers = {"Content-Type": "application/json"}
    for name in ("attention", "lens", "surprisal", "trace"):
        for body in ({"text": "It was"}, {"text": "the keeper sleep"}):
            answer = server.ask("POST", f"/api/{name}", json.dumps(body).encode(), headers)[1]
            asks["reading"].append(Ask("reading", f"/api/{name}", body, 200, answer))
    return asks


def text_of(kind: str, answer: str) -> str:
    """Return the text in an answer, whose events are joined."""
    if kind == "completion":
        return str(json.loads(answer)["choices"][0]["text"])
    if kind == "reading":
        return answer
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    parts = [json.loads(event) for event in events if event != "[DONE]"]
    if kind == "stream":
        return "".join(part["choices"][0]["text"] for part in parts)
    return "".join(token["text"] for part in parts for token in part["tokens"] if not token["isGiven"])


def send_what_has_no_end(head: bytes, piece: bytes, count: int, status: int) -> Callable[[ServerProcess], str]:
    """Return an attack: a request of so many pieces, which is refused on the way."""

    def attack(server: ServerProcess) -> str:
        with server.connect(head) as connection:
            with suppress(OSError):
                for _ in range(count):
                    connection.sendall(piece)
            with suppress(ConnectionError):
                answer = connection.recv(12).decode()
                return "" if answer == f"HTTP/1.1 {status}" else f"{head!r} is answered with {answer}"
        return ""

    return attack


def come_from_elsewhere(header: str, value: str) -> Callable[[ServerProcess], str]:
    """Return an attack: a request that a stranger's page makes a browser send."""

    def attack(server: ServerProcess) -> str:
        status, _ = server.post(b'{"prompt": "It"}', **{header: value})
        return "" if status == 403 else f"{header} {value} is answered with {status}"

    return attack


ATTACKS = (
    send_what_has_no_end(b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X: " + b"a" * MEGABYTE, 1, 431),
    send_what_has_no_end(b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X: a\r\n" * 1000, 200, 431),
    send_what_has_no_end(HEAD + b"Content-Length: %d\r\n\r\n" % (100 * MEGABYTE), b" " * MEGABYTE, 100, 413),
    send_what_has_no_end(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b" " * MEGABYTE + b"\r\n", 100, 413
    ),
    come_from_elsewhere("Host", "evil.example"),
    come_from_elsewhere("Origin", "http://evil.example"),
)


class Clients:
    """Ask a server, each in a thread and on a connection of its own, which it keeps.

    Args:
        server: to ask.
        asks: what can be asked.
    """

    def __init__(self, server: ServerProcess, asks: dict[str, list[Ask]]) -> None:
        self._server, self._asks = server, asks
        self._local = threading.local()

    def ask(self, number: int) -> tuple[int, str]:
        """Make one request; return how many tokens it generates, and what was wrong with the answer."""
        chance = Random(number)
        (kind,) = chance.choices(list(SHARES), list(SHARES.values()))
        if kind == "hostile":
            return 0, chance.choice(ATTACKS)(self._server)
        ask = chance.choice(self._asks[kind])
        status, answer = self._answer(ask)
        until = time.monotonic() + PATIENCE
        while status == 429 and VIEWS_FULL in answer and time.monotonic() < until:
            time.sleep(0.02)
            status, answer = self._answer(ask)
        if status != ask.status:
            return ask.tokens, f"{ask} is answered with {status}: {answer[:300]}"
        text = None if ask.text is None else text_of(kind, answer)
        return ask.tokens, "" if text == ask.text else f"{text!r} instead of {ask}"

    def leave(self, number: int) -> None:
        """Ask for a long text, and vanish once it has begun, or in the middle of it."""
        connection = self._server.connect(request(**LONG, stream=True))
        for _ in range(1 + number // EVERY % 5):
            connection.recv(1000)
        vanish(connection)

    def _answer(self, ask: Ask) -> tuple[int, str]:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE)
        elif time.monotonic() > self._local.answered + MAX_IDLE:
            self._local.connection.close()  # it is opened again
        content = None if ask.body is None else json.dumps(ask.body).encode()
        headers = {"Content-Type": "application/json"}
        self._local.connection.request("GET" if content is None else "POST", ask.path, content, headers)
        answer = self._local.connection.getresponse()
        text = answer.read().decode()
        self._local.answered = time.monotonic()
        return answer.status, text


def bring(server: ServerProcess, run: Path, count: int, tally: Tally) -> None:
    """Make so many requests, and compare texts, counters, blocks and memory."""
    clients, memory = Clients(server, make_asks(run, server)), list[int]()
    before, completed, tokens, left = _counts(server), 0, 0, 0
    part = -(-count // 10)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for begin in range(0, count, part):
            numbers = range(begin, min(count, begin + part))
            leaving = [pool.submit(clients.leave, number) for number in numbers if number % EVERY == EVERY // 2]
            for generated, wrong in pool.map(clients.ask, (n for n in numbers if n % EVERY != EVERY // 2)):
                tally.outcome("right answers", wrong, "request")
                completed, tokens = completed + bool(generated), tokens + generated
            left += len([future.result() for future in leaving])
            server.seconds_to_rest()
            memory.append(server.memory())
    tally.count("clients vanished", left)
    ended = {name: number - before.get(name, 0.0) for name, number in _counts(server).items()}
    generated = ended.pop("tokens")
    shown = f"{completed} completions and {left} that were left: the server counts {ended}, {generated:.0f} tokens"
    adds_up = ended.get("200", 0) >= completed and sum(ended.values()) == completed + left
    tally.check(adds_up and not ended.get("500", 0), shown)
    tally.check(tokens <= generated <= tokens + left * LONG["max_tokens"], f"{shown} instead of {tokens} and more")
    growth = memory[-1] - memory[1]
    tally.figures["of memory more"] = f"{growth / MEGABYTE:+.0f} MiB"
    tally.check(growth < MEMORY, f"the memory grew by {growth / MEGABYTE:.0f} MiB: {memory}")


def _counts(server: ServerProcess) -> dict[str, float]:
    """Return how many completions the server says have ended, by their status, and how many tokens it generated."""
    lines = [line for line in server.get("/metrics").splitlines() if line.startswith("gpt_requests_total{")]
    ended = {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}
    return {**ended, "tokens": server.metric("gpt_tokens_generated_total")}


def wait_behind_unread_streams(server: ServerProcess, tally: Tally, streams: int, limit: float) -> None:
    """Let clients that read nothing have long streams, and measure how long a short request takes behind them."""
    body = {"max_tokens": 4096, "overflow": "slide", "stream": True}
    connections = [server.connect(request(**body, seed=seed), receive_bytes=4096) for seed in range(streams)]
    for connection in connections:
        connection.recv(1)  # it has begun
    seconds = server.seconds_to_answer()
    for connection in connections:
        vanish(connection)
    server.seconds_to_rest()
    tally.figures["behind unread streams"] = f"{seconds:.1f} s"
    tally.check(seconds < limit, f"a short request took {seconds:.1f} s behind {streams} streams that nobody reads")


def run(folder: Path, full: bool) -> Tally:
    """Attack one server."""
    tally = Tally("right answers", "lost", "clients vanished")
    trained = train_tiny(folder, "model.n_embd=64")  # heads that the native backend takes
    with serve_process(folder) as server:
        idle = [server.connect() for _ in range(IDLE if full else 0)]
        bring(server, trained, repeats(full, 20_000, 100), tally)
        for connection in idle:
            connection.close()
        wait_behind_unread_streams(server, tally, *((64, 2.0) if full else (8, PATIENCE)))
    return tally


PROMISE = (
    "Requests of every kind for long, hostile ones among them, of which one in a hundred is left, get the texts that "
    "each would get alone, leave no block in use and less than 64 MiB, and are all counted; a short one behind 64 "
    "unread streams takes less than 2 s."
)
DRILL = Drill(PROMISE, run)
