"""Servers on real sockets, in a thread of their own: with the real engine, or with one that a test moves by hand."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import uvicorn

from gpt.checkpoint import Loaded
from gpt.config import Config, SamplingParams
from gpt.data.tokenizers import CharTokenizer, Tokenizer
from gpt.extras.serving import EngineStats, EngineThread, QueueFullError, Request
from gpt.extras.serving.http.app import create_app
from gpt.extras.serving.http.limits import Limits
from gpt.extras.serving.http.models import Models
from gpt.extras.serving.http.responses import Services
from gpt.extras.serving.http.server import bind, build_config
from gpt.generation.sequence import TextChunk
from gpt.generation.tokens import SampledToken
from gpt.model import GPT
from patience import PATIENCE
from server_process import HEAD, post_bytes  # noqa: F401  # for tests of servers in this process too


class ManualEngine:
    """An engine that computes nothing: a test says what comes. It admits `room` requests."""

    def __init__(self, room: int = 1000) -> None:
        self.room, self.failure = room, None
        self.requests: list[Request] = []
        self.cancelled: list[Request] = []
        self.arrived, self.left = threading.Semaphore(0), threading.Semaphore(0)

    def submit(self, prompt: str, params: SamplingParams, on_pieces: Callable[[list[TextChunk]], None]) -> Request:
        if len(self.requests) >= self.room:
            raise QueueFullError("1 requests are waiting already")
        self.requests.append(Request([0], params, on_pieces))
        self.arrived.release()
        return self.requests[-1]

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)
        request.on_chunks([TextChunk(0, "", None, "cancelled")])
        self.left.release()

    def say(self, text: str, finish: Any = None, request: int = 0) -> None:
        """Give a request one more piece."""
        self.requests[request].on_chunks([TextChunk(0, text, SampledToken(0), finish)])

    def wait_for_request(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE)

    def wait_for_cancel(self, seconds: float = 10.0) -> None:
        """Wait for less than a server's limits, which would cancel a request too."""
        assert self.left.acquire(timeout=seconds)

    def stats(self) -> EngineStats:
        return EngineStats(*[0] * len(EngineStats._fields))

    def close(self) -> None:
        pass


@dataclass
class Served:
    """A server that runs; `engine` is that of its first model."""

    url: str
    services: Services
    models: Models
    loop: asyncio.AbstractEventLoop
    connections: set[Any]
    engines: list[Any] = field(default_factory=list)

    @property
    def engine(self) -> Any:
        return self.engines[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until something is true on the event loop."""

        async def look() -> None:
            while not is_true():
                await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(look(), self.loop).result(PATIENCE)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=PATIENCE)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        with self.http() as client:
            return client.get(path, headers=headers)

    def post(self, path: str = "/v1/completions", /, **body: Any) -> httpx2.Response:
        return self.send(json.dumps(body).encode(), path)

    def send(self, content: Any, path: str = "/v1/completions", **headers: Any) -> httpx2.Response:
        """Post bytes, as JSON where the headers say nothing else."""
        with self.http() as client:
            return client.post(path, content=content, headers={"Content-Type": "application/json", **headers})

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection, and send something."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(sent)
        return connection


Serve = Callable[..., AbstractContextManager[Served]]
CharModel = tuple[GPT, CharTokenizer]


def assert_is_error(answer: httpx2.Response, status: int, param: str | None = None, *words: str) -> str:
    """Expect the shape of all errors, and return the message."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]
    assert all(word in error["message"] for word in words), error["message"]
    return error["message"]


@contextmanager
def serve_models(
    folder: Path,
    loaded: Callable[[Path], Loaded],
    make_engine: Callable[[Loaded], Any],
    limits: Limits = Limits(),  # noqa: B008
    **app_options: Any,
) -> Iterator[Served]:
    """Run a server in a thread until the context ends."""
    bound, engines = bind("127.0.0.1", 0), []
    ready, stop = Future[Served](), threading.Event()

    def keep(model: Loaded) -> Any:
        engines.append(make_engine(model))
        return engines[-1]

    async def run() -> None:
        models = Models(loaded, keep, folder)
        app = create_app(models, limits, **app_options)
        server = uvicorn.Server(build_config(app, limits, "critical", timeout_graceful_shutdown=0))
        serving = asyncio.create_task(server.serve([bound]))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        connections = server.server_state.connections
        served = Served(url, app.state.services, models, asyncio.get_running_loop(), connections, engines)
        async with models.use(None):
            pass
        while not server.started:
            await asyncio.sleep(0.005)
        ready.set_result(served)
        while not stop.is_set():
            await asyncio.sleep(0.01)
        server.should_exit = True
        await serving
        await models.close()

    thread = threading.Thread(target=asyncio.run, args=[run()])
    thread.start()
    try:
        yield ready.result(PATIENCE)
    finally:
        stop.set()
        thread.join()


def add_run(runs: Path, name: str) -> None:
    """Put a run whose checkpoint is empty into a runs folder."""
    checkpoint = runs / name / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    (checkpoint / "model.safetensors").write_bytes(b"x" * 100)
    (runs / name / "last.json").write_text('{"checkpoint": "checkpoints/step-000001", "step": 1}')


def make_loaded(model: GPT, tokenizer: Tokenizer) -> Callable[[Path], Loaded]:
    config = Config.model_validate({"sample": {"temperature": 0.8}})
    return lambda folder: Loaded(model, tokenizer, config, folder, {"step": 5})


def real_engine(loaded: Loaded) -> EngineThread:
    # by the native backend where there is one: its logprobs are the same bits in any batch
    return EngineThread(loaded.model, loaded.tokenizer, max_sequences=16)
