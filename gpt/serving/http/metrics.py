"""Metrics of a server, for Prometheus."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpt.serving.http.models import Models

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
GAUGES = {
    "running": "Sequences in the batch.",
    "waiting": "Requests that are not in the batch yet.",
    "blocks_in_use": "Blocks of the key/value cache in use.",
    "blocks": "Blocks of the key/value cache.",
}
COUNTERS = {
    "tokens_generated": "Tokens generated.",
    "prompt_tokens_reused": "Tokens of prompts whose keys and values were in the cache.",
    "preemptions": "Sequences that gave their blocks back and were computed again.",
}


class Metrics:
    """Counts requests, and reads the statistics of the models' engines when they are asked for."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("gpt_requests", "Completion requests by their end.", ["status"], registry=registry)
        self._answers = Counter(
            "gpt_answers", "Answers to requests of any kind, by HTTP status.", ["status"], registry=registry
        )
        self._prompt_tokens = Counter("gpt_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._first_token = Histogram(
            "gpt_time_to_first_token_seconds", "To the first token.", buckets=SECONDS, registry=registry
        )
        self._duration = Histogram(
            "gpt_request_seconds", "To the end of the answer.", buckets=SECONDS, registry=registry
        )
        registry.register(self)

    def count(self, status: int, prompt_tokens: int, begun: float, first: float | None) -> None:
        """Count a response that has ended, and the times of its request and of its first token, if there is one."""
        self._requests.labels(status).inc()
        self._prompt_tokens.inc(prompt_tokens)
        if first is not None:
            self._first_token.observe(first - begun)
        self._duration.observe(time.monotonic() - begun)

    def count_answer(self, status: int) -> None:
        self._answers.labels(status).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield what the engines say now; the registry calls it."""
        stats = {name: served.engine.stats() for name, served in self._models.loaded.items()}
        for kind, described in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for field, help_text in described.items():
                family = kind(f"gpt_{field}", help_text, labels=["model"])
                for name, values in stats.items():
                    family.add_metric([name], getattr(values, field))
                yield family

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)
