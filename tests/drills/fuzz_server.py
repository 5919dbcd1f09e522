"""Requests to every address of a server, with bodies and queries that nobody expects."""

import http.client
import json
import random
from pathlib import Path
from typing import Any

from drills.frame import Tally
from drills.nasty import mutate_bytes, text, value
from server_process import PATIENCE, ServerProcess, serve_process

FIELDS = ("prompt", "prompts", "text", "max_tokens", "n", "logprobs", "stop", "seed", "temperature", "top_p", "top_k")
FIELDS += ("model", "stream", "recipe", "corpus", "name", "layer", "head", "position", "step", "token", "k", "echo")


def ask_server(folder: Path, tally: Tally, count: int) -> int:
    """Send so many requests, and check that each is answered, none with an error of the server's."""
    with serve_process(folder, "--checkpoint", "runs/tiny", "--max-tokens", "64") as server:
        routes = _routes(server)
        for number in range(count):
            chance = random.Random(f"requests {number}")
            method, path = chance.choice(routes)
            try:
                status = _ask(server, method, path, chance)
                tally.check(status < 500, f"request {number}, {method} {path}: {status}")
            except (OSError, http.client.HTTPException) as error:
                tally.count("hangs", isinstance(error, TimeoutError))
                tally.check(False, f"request {number}, {method} {path}: {error!r}")
        tally.check(server.process.poll() is None, "the server is gone")
    return count


def _routes(server: ServerProcess) -> list[tuple[str, str]]:
    document = json.loads(server.get("/openapi.json"))
    every = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    return [route for route in every if "events" not in route[1] and "follow" not in route[1]]


def _ask(server: ServerProcess, method: str, path: str, chance: random.Random) -> int:
    known = {"prompt": "It was", "text": "It was", "max_tokens": 2, "model": "tiny"}
    body: Any = {name: known.get(name, 1) for name in chance.sample(FIELDS, 2)} | {
        name: value(chance) for name in chance.sample(FIELDS, chance.randint(1, 3))
    }
    content = json.dumps(body if chance.random() < 0.9 else value(chance)).encode()
    if chance.random() < 0.2:
        content = mutate_bytes(content, chance)
    query = "&".join(f"{name}={_quoted(text(chance))}" for name in chance.sample(FIELDS, chance.randint(0, 2)))
    path = path.replace("{", "").replace("}", "") if chance.random() < 0.3 else _filled(path, chance)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request(
        method, f"{path}?{query}"[:4000], content if method == "POST" else None, {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def _filled(path: str, chance: random.Random) -> str:
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + chance.choice(("tiny", _quoted(text(chance))[:200] or "x")) + rest.partition("}")[2]
    return path


def _quoted(raw: str) -> str:
    return "".join(f"%{byte:02x}" for byte in raw.encode("utf-8", errors="surrogatepass"))
