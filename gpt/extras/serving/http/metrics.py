"""`/metrics`: requests, tokens, queue and latency in the format of Prometheus."""

import time
from collections.abc import Iterator

from fastapi import FastAPI, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt.extras.serving.http.models import Models

BUCKET_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds of the buckets of the histograms: from an answer without a model to a long stream.
"""


class RequestMetrics:
    """Middleware that counts requests, and measures how long they take until their answer begins
    and ends.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "gpt_requests", "Requests that were answered", ["path", "status"], registry=registry
        )
        self._seconds_to_begin = Histogram(
            "gpt_first_byte_seconds",
            "Seconds until an answer begins",
            ["path"],
            buckets=BUCKET_SECONDS,
            registry=registry,
        )
        self._seconds_to_end = Histogram(
            "gpt_request_seconds",
            "Seconds until an answer ends",
            ["path"],
            buckets=BUCKET_SECONDS,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        begun: float | None = None
        status = 500  # unless an answer begins, since then an endpoint has raised

        async def send_measured(message: Message) -> None:
            nonlocal begun, status
            if message["type"] == "http.response.start":
                begun = time.monotonic()
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_measured)
        finally:
            # The path is the route's pattern, as in /v1/models/{name}. Each other label that a
            # client could make up would stay in memory for ever.
            path = getattr(scope.get("route"), "path", "none")
            self._requests.labels(path, str(status)).inc()
            self._seconds_to_end.labels(path).observe(time.monotonic() - start)
            if begun is not None:
                self._seconds_to_begin.labels(path).observe(begun - start)


class EngineMetrics(Collector):
    """Reads the statistics of the engines of the loaded models whenever metrics are asked for."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        labels = ["model"]
        running = GaugeMetricFamily("gpt_running", "Sequences in the batch", labels=labels)
        waiting = GaugeMetricFamily("gpt_waiting", "Sequences in the queue", labels=labels)
        tokens = CounterMetricFamily(
            "gpt_generated_tokens", "Tokens since the model was loaded", labels=labels
        )
        for name, served in list(self._models.loaded.items()):
            stats = served.engine.stats()
            running.add_metric([name], stats.running)
            waiting.add_metric([name], stats.waiting)
            tokens.add_metric([name], stats.tokens_generated)
        return iter((running, waiting, tokens))


def add_metrics(app: FastAPI, models: Models) -> None:
    """Measure all requests, and add the endpoint that shows the metrics."""
    registry = CollectorRegistry()
    registry.register(EngineMetrics(models))
    app.add_middleware(RequestMetrics, registry=registry)

    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.add_api_route("/metrics", metrics, include_in_schema=False)
