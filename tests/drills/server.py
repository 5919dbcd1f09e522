"""What a hostile client can do to the server."""

import contextlib
import http.client
import json
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drills.frame import Drill, Tally
from drills.tiny_run import train_tiny
from patience import PATIENCE
from server_process import HEAD, ServerProcess, request, serve_process, vanish

LONG = {"max_tokens": 4000, "seed": 1}
MEGABYTE = 1 << 20
NAMES = ("prompt", "max_tokens", "n", "logprobs", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "echo")
NAMES += ("repetition_penalty", "overflow", "long_prompt", "stream", "stream_options", "model", "user", "best_of", "x")


def vanish_in_the_middle(server: ServerProcess, count: int) -> None:
    """Half of them stream, and leave after the first text; most wait, since fewer run at a time."""
    connections = [server.connect(request(**LONG, stream=bool(number % 2))) for number in range(count)]
    connections[1].recv(100)
    for connection in connections:
        vanish(connection)


def send_malformed_bodies(server: ServerProcess, count: int) -> None:
    """Every body is answered with an error of the client's, or was right by chance."""
    chance = random.Random(0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    for _ in range(count):
        content = _malformed(chance)
        connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in (200, 400, 404), (content, text)
        if answer.status != 200:
            assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
    connection.close()


def _malformed(chance: random.Random) -> bytes:
    """Return a body with wrong types, wrong ranges, wrong JSON, or wrong bytes."""
    body = {"prompt": "It", "max_tokens": 1, **{name: _value(chance, 3) for name in chance.sample(NAMES, 2)}}
    content = bytearray(json.dumps(body).encode())
    if chance.random() < 0.5:
        return bytes(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(content))
        content[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return bytes(content[: chance.choice((len(content), chance.randrange(len(content) + 1)))])


def _value(chance: random.Random, depth: int) -> Any:
    if depth and chance.random() < 0.3:
        return [_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if depth and chance.random() < 0.2:
        return {chance.choice(NAMES): _value(chance, depth - 1)}
    numbers = (0, -1, 1, 2, 63, 10**30, -(2**63), 2**63, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"))
    texts = ("", "It", "\0", "\ud800", "é" * 70, "a" * 300, "yes", "1", "\N{PILE OF POO}")
    return chance.choice((*numbers, *texts, None, True, False))


def read_slowly(server: ServerProcess, count: int) -> None:
    """Answers that are complete, and larger than what the system keeps, for clients that read nothing."""
    body = {"max_tokens": 500, "logprobs": 20}
    connections = [
        server.connect(request(**body, stream=bool(number % 2)), receive_bytes=4096) for number in range(count)
    ]
    while server.metric("gpt_running") + server.metric("gpt_waiting"):
        pass
    server.seconds_to_answer()
    for connection in connections:
        vanish(connection)


def send_headers_slowly(server: ServerProcess, count: int) -> None:
    """Slow loris: requests that never end, a line at a time."""
    connections = [server.connect(HEAD) for _ in range(count)]
    for number in range(5):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b"X-%d: a\r\n" % number)
        server.seconds_to_answer()
    for connection in connections:
        connection.close()


def flood_headers(server: ServerProcess, count: int) -> None:
    """Headers of a megabyte, in one line or in many."""
    for number in range(count):
        with server.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            connection.sendall(b"X: " + b"a" * MEGABYTE if number % 2 else b"X: a\r\n" * (MEGABYTE // 6))
            assert connection.recv(12) == b"HTTP/1.1 431"


def stay_idle(server: ServerProcess, count: int) -> None:
    """Connections that say nothing, more than the server keeps."""
    connections = [server.connect() for _ in range(count)]
    for _ in range(5):
        server.seconds_to_answer()
    for connection in connections:
        connection.close()


def send_huge_bodies(server: ServerProcess, count: int) -> None:
    """100 MB, announced or in chunks."""
    for number in range(count):
        with server.connect() as connection, contextlib.suppress(OSError):
            head = b"Transfer-Encoding: chunked" if number % 2 else b"Content-Length: %d" % (100 * MEGABYTE)
            connection.sendall(HEAD + head + b"\r\n\r\n")
            for _ in range(100):
                connection.sendall(b"100000\r\n" * (number % 2) + b" " * MEGABYTE + b"\r\n" * (number % 2))
            assert connection.recv(12) == b"HTTP/1.1 413"


def send_lists_of_wrong_values(server: ServerProcess, count: int) -> None:
    """As many mistakes as fit in a body."""
    for number in range(count):
        item = (b"{}", b"-1", b"[]", b"[-1]", b"1")[number % 5]
        name = (b"prompt", b"stop")[number % 2]
        values = b",".join([item] * (MEGABYTE // (len(item) + 1) - 20))
        status, _ = server.post(b'{"prompt":"It","%s":[%s,null]}' % (name, values))
        assert status == 400


def come_from_elsewhere(server: ServerProcess, count: int) -> None:
    """Requests that a stranger's page makes a browser send: a name that resolves to here, or another origin."""
    body = json.dumps({"prompt": "It"}).encode()
    for number in range(count):
        headers = {"Host": "evil.example"} if number % 2 else {"Origin": "http://evil.example"}
        assert server.post(body, **headers)[0] == 403


ATTACKS: dict[Callable[[ServerProcess, int], None], tuple[int, int]] = {
    vanish_in_the_middle: (100, 200),
    send_malformed_bodies: (2000, 10_000),
    read_slowly: (6, 200),
    send_headers_slowly: (100, 2000),
    flood_headers: (10, 500),
    stay_idle: (1100, 5000),
    send_huge_bodies: (2, 20),
    send_lists_of_wrong_values: (10, 100),
    come_from_elsewhere: (20, 1000),
}
"""How often each is done in the tests, and at full scale."""


MEMORY = 64 * MEGABYTE
"""Bytes that an attack may leave behind: what the allocator keeps differs from run to run."""


@contextlib.contextmanager
def warm_server(folder: Path) -> Iterator[ServerProcess]:
    """Serve a run; the memory that any load needs is there before it is compared."""
    with serve_process(folder, "--checkpoint", "runs/tiny") as server:
        for _ in range(3):
            read_slowly(server, 6)
            server.seconds_to_rest()
        yield server


def run(folder: Path, full: bool) -> Tally:
    """Do all attacks on one server; after each it answers at once, is at rest, and has the memory it had."""
    tally = Tally("kinds of attack", "attacks", "suffered")
    train_tiny(folder)
    socket.setdefaulttimeout(PATIENCE)
    with warm_server(folder) as server:
        for attack, counts in ATTACKS.items():
            before, count = server.memory(), counts[full]
            try:
                attack(server, count)
                slowest = max(server.seconds_to_answer(), server.seconds_to_rest())
                growth = server.memory() - before
                good = tally.check(
                    slowest < (2 if full else 5), f"{attack.__name__}: {slowest:.1f} s until the next answer"
                )
                good &= tally.check(growth < MEMORY, f"{attack.__name__}: {growth / MEGABYTE:.0f} MiB more memory")
            except (AssertionError, OSError, http.client.HTTPException) as error:
                good = tally.check(False, f"{attack.__name__}: {error!r}")
            tally.count("kinds of attack")
            tally.count("attacks", count)
            tally.count("suffered", not good)
    return tally


DRILL = Drill("A server under attack answers the next client, frees every block and grows by less than 64 MiB.", run)
