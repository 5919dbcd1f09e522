"""Run servers on real sockets in a thread, with the real engine or one that a test drives."""

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
from gpt.extras.serving.engine_thread import EngineLimits
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


def _send(request: Request, chunk: TextChunk) -> None:
    assert request.on_chunks is not None
    request.on_chunks([chunk])


class ManualEngine:
    """An engine that computes nothing: a test says which text comes. It accepts `room` requests."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.failure = None
        self.requests: list[Request] = []
        self.cancelled: list[Request] = []
        self.arrived = threading.Semaphore(0)  # requests that no test has waited for yet
        self.left = threading.Semaphore(0)  # the same for those that were cancelled

    def submit(
        self, prompt: str, params: SamplingParams, on_chunks: Callable[[list[TextChunk]], None]
    ) -> Request:
        if len(self.requests) >= self.room:
            raise QueueFullError("1 requests are waiting already")
        request = Request([0], params, on_chunks)
        self.requests.append(request)
        self.arrived.release()
        return request

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)
        _send(request, TextChunk(0, "", None, "cancelled"))
        self.left.release()

    def say(self, text: str, finish: Any = None, request: int = 0) -> None:
        """Let a request receive one more chunk."""
        _send(self.requests[request], TextChunk(0, text, SampledToken(0), finish))

    def wait_for_request(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE)

    def wait_for_cancel(self, seconds: float = 10.0) -> None:
        """Wait for less time than a server's limits, after which it would cancel a request, too."""
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
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
        )

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=PATIENCE)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        with self.http() as client:
            return client.get(path, headers=headers)

    def post(self, path: str = "/v1/completions", /, **body: Any) -> httpx2.Response:
        return self.send(json.dumps(body).encode(), path)

    def send(self, content: Any, path: str = "/v1/completions", **headers: Any) -> httpx2.Response:
        """Post bytes, as JSON unless the headers say otherwise."""
        all_headers = {"Content-Type": "application/json", **headers}
        with self.http() as client:
            return client.post(path, content=content, headers=all_headers)

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection, and send something."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(sent)
        return connection


Serve = Callable[..., AbstractContextManager[Served]]
CharModel = tuple[GPT, CharTokenizer]


def assert_is_error(
    answer: httpx2.Response, status: int, param: str | None = None, *words: str
) -> str:
    """Check that an answer is an error in the protocol's shape, whose message has these words, and
    return the message.
    """
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
    """Run a server in a thread until the context ends.

    Args:
        folder: the runs folder.
        loaded: returns the model of a checkpoint folder.
        app_options: those of `create_app`.
    """
    bound = bind("127.0.0.1", 0)
    engines: list[Any] = []
    ready = Future[Served]()
    stop = threading.Event()

    def make_and_keep(model: Loaded) -> Any:
        engine = make_engine(model)
        engines.append(engine)
        return engine

    async def run() -> None:
        models = Models(loaded, make_and_keep, folder)
        app = create_app(models, limits, **app_options)
        server = uvicorn.Server(build_config(app, limits, "critical", timeout_graceful_shutdown=0))
        serving = asyncio.create_task(server.serve([bound]))
        async with models.use(None):  # so that the first engine is there
            pass
        while not server.started:
            await asyncio.sleep(0.005)
        served = Served(
            url=f"http://127.0.0.1:{bound.getsockname()[1]}",
            services=app.state.services,
            models=models,
            loop=asyncio.get_running_loop(),
            connections=server.server_state.connections,
            engines=engines,
        )
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
    """Return a function that returns a model as if it were loaded from a folder."""
    config = Config.model_validate({"sample": {"temperature": 0.8}})
    return lambda folder: Loaded(model, tokenizer, config, folder, {"step": 5})


def real_engine(loaded: Loaded) -> EngineThread:
    # the native backend where there is one: its log-probabilities are the same bits in any batch
    return EngineThread(loaded.model, loaded.tokenizer, EngineLimits(max_sequences=16))
