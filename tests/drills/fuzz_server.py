"""Requests to every address of a server, with bodies and queries that nobody expects."""

import http.client
import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from drills.frame import Tally
from drills.nasty import mutate_bytes, text, value
from server_process import ServerProcess, serve_process

KNOWN = {"prompt": "It was", "text": "It was", "max_tokens": 2, "max_new_tokens": 2, "model": "tiny"}
PLAUSIBLE = (0, 1, 2, 5, 0.5, 1.0, True, False, "It", ["It"], [0, 1], "tiny")
Route = tuple[str, str, list[str]]
"""Method, path and fields of the body of an address."""


def ask_server(folder: Path, tally: Tally, count: int) -> None:
    """Send so many requests, and check that each is answered, none with an error of the server's."""
    with serve_process(folder, "--checkpoint", "runs/tiny", "--max-tokens", "64") as server:
        routes = list(_routes(json.loads(server.get("/openapi.json"))))
        for number in range(count):
            chance = random.Random(f"requests {number}")
            route = chance.choice(routes)
            tally.count("requests")
            try:
                status = _ask(server, route, [name for _, _, fields in routes for name in fields], chance)
                tally.check(status < 500, f"request {number}, {route}: {status}")
            except (OSError, http.client.HTTPException) as error:
                tally.count("hangs", isinstance(error, TimeoutError))
                tally.check(False, f"request {number}, {route}: {error!r}")
        tally.check(server.process.poll() is None, "the server is gone")


def _routes(document: dict[str, Any]) -> list[Route]:
    """Return every address that does not follow something for ever."""
    routes = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
            fields = document["components"]["schemas"].get(name, {}).get("properties", {})
            routes.append((method.upper(), path, list(fields)))
    return [route for route in routes if "events" not in route[1] and "follow" not in route[1]]


def _ask(server: ServerProcess, route: Route, names: list[str], chance: random.Random) -> int:
    method, path, fields = route
    body: Any = {name: KNOWN[name] for name in fields if name in KNOWN}
    for name in chance.sample(fields, min(len(fields), chance.randint(0, 2))):
        body[name] = value(chance) if chance.random() < 0.6 else chance.choice(PLAUSIBLE)
    content = json.dumps(body if chance.random() < 0.9 else value(chance)).encode()
    if chance.random() < 0.2:
        content = mutate_bytes(content, chance)
    query = "&".join(f"{name}={_quoted(chance)}" for name in chance.sample(names, chance.randint(0, 2)))
    path = re.sub(r"\{\w+\}", lambda _: chance.choice(("tiny", _quoted(chance)[:200] or "x")), path)
    sent = content if method == "POST" else None
    return server.ask(method, f"{path}?{query}"[:4000], sent, {"Content-Type": "application/json"})[0]


def _quoted(chance: random.Random) -> str:
    return quote(text(chance).encode("utf-8", errors="surrogatepass"), safe="")
