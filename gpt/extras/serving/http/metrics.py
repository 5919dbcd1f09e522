"""`/metrics`: requests, tokens, queue and latency in the format of Prometheus."""

import time
from collections.abc import Iterator

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt.extras.serving.http.models import Models

SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class RequestMetrics:
    """Counts requests by path and status, and measures how long they take until their answer begins and ends."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        labels = ["path", "status"]
        self._requests = Counter("gpt_requests", "Requests that were answered", labels, registry=registry)
        begun = "Seconds until an answer begins"
        self._begun = Histogram("gpt_first_byte_seconds", begun, ["path"], buckets=SECONDS, registry=registry)
        ended = "Seconds until an answer ends"
        self._ended = Histogram("gpt_request_seconds", ended, ["path"], buckets=SECONDS, registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, begun, status = time.monotonic(), None, 500  # of a request that raises

        async def send_measured(message: Message) -> None:
            nonlocal begun, status
            if message["type"] == "http.response.start":
                begun, status = time.monotonic(), message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_measured)
        finally:
            # a path as it was added: what clients think of would be kept for ever
            path = getattr(scope.get("route"), "path", "none")
            self._requests.labels(path, str(status)).inc()
            self._ended.labels(path).observe(time.monotonic() - start)
            if begun is not None:
                self._begun.labels(path).observe(begun - start)


class EngineMetrics(Collector):
    """Reads what the engines of the loaded models have counted."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("gpt_running", "Sequences in the batch", labels=["model"])
        waiting = GaugeMetricFamily("gpt_waiting", "Sequences in the queue", labels=["model"])
        tokens = CounterMetricFamily("gpt_generated_tokens", "Tokens since the model was loaded", labels=["model"])
        for name, served in list(self._models.loaded.items()):
            stats = served.engine.stats()
            running.add_metric([name], stats.running)
            waiting.add_metric([name], stats.waiting)
            tokens.add_metric([name], stats.tokens_generated)
        return iter((running, waiting, tokens))


def add_metrics(app: FastAPI, models: Models) -> None:
    """Add the endpoint, and what it shows."""
    registry = CollectorRegistry()
    registry.register(EngineMetrics(models))
    app.add_middleware(RequestMetrics, registry=registry)

    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.add_api_route("/metrics", metrics, include_in_schema=False)
