"""Requests to every address of a server, with bodies and queries that nobody expects."""

import http.client
import json
import random
from pathlib import Path
from typing import Any

from drills.frame import Tally
from drills.nasty import mutate_bytes, text, value
from patience import PATIENCE
from server_process import ServerProcess, serve_process

FIELDS = ("prompt", "prompts", "text", "max_tokens", "n", "logprobs", "stop", "seed", "temperature", "top_p", "top_k")
FIELDS += ("model", "stream", "recipe", "corpus", "name", "layer", "head", "position", "step", "token", "k", "echo")

KNOWN = {"prompt": "It was", "text": "It was", "max_tokens": 2, "max_new_tokens": 2, "model": "tiny"}
PLAUSIBLE = (0, 1, 2, 5, 0.5, 1.0, True, False, "It", ["It"], [0, 1], "tiny")


def ask_server(folder: Path, tally: Tally, count: int) -> int:
    """Send so many requests, and check that each is answered, none with an error of the server's."""
    with serve_process(folder, "--checkpoint", "runs/tiny", "--max-tokens", "64") as server:
        routes = _routes(server)
        for number in range(count):
            chance = random.Random(f"requests {number}")
            method, path, fields = chance.choice(routes)
            try:
                status = _ask(server, method, path, fields, chance)
                tally.check(status < 500, f"request {number}, {method} {path}: {status}")
            except (OSError, http.client.HTTPException) as error:
                tally.count("hangs", isinstance(error, TimeoutError))
                tally.check(False, f"request {number}, {method} {path}: {error!r}")
        tally.check(server.process.poll() is None, "the server is gone")
    return count


def _routes(server: ServerProcess) -> list[tuple[str, str, list[str]]]:
    """Return method, path and fields of the body of every address that does not follow something for ever."""
    document = json.loads(server.get("/openapi.json"))
    routes = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
            fields = list(document["components"]["schemas"].get(name, {}).get("properties", {}))
            routes.append((method.upper(), path, fields))
    return [route for route in routes if "events" not in route[1] and "follow" not in route[1]]


def _ask(server: ServerProcess, method: str, path: str, fields: list[str], chance: random.Random) -> int:
    """Send a request that is right but for a few fields, and return the status."""
    body: Any = {name: KNOWN[name] for name in fields if name in KNOWN}
    for name in chance.sample(fields, min(len(fields), chance.randint(0, 2))):
        body[name] = value(chance) if chance.random() < 0.6 else chance.choice(PLAUSIBLE)
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
