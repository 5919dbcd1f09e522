"""Limits of what a server and its requests may use."""

from dataclasses import dataclass

from gpt.serving.http.errors import APIError
from gpt.serving.http.protocol import CompletionRequest


@dataclass(frozen=True)
class Limits:
    """Upper limits; a request that exceeds one is refused, never trimmed.

    Attributes:
        body_bytes: bytes of a request's body.
        max_tokens: tokens of a completion.
        choices: completions of a request, over all its prompts.
        logprobs: alternatives per token.
        logprob_values: log-probabilities of an answer.
        values: tokens and log-probabilities of all answers that are under way: they are held until they are read.
        stops: stop strings.
        stop_characters: characters of each stop string.
        running: sequences computed at a time.
        waiting: sequences that wait besides.
        connections: open connections.
        request_seconds: from the opening of a connection, or the last answer on it, to the end of a request.
        stall_seconds: in which a client reads at least 16 KiB of what waits for it, or all of it.
        view_tokens: tokens of a text to be inspected.
        view_bytes: bytes of a view of it.
        views: texts that are looked into or wait for it; one at a time is.
    """

    body_bytes: int = 1 << 20
    max_tokens: int = 4096
    choices: int = 64
    logprobs: int = 20
    logprob_values: int = 1 << 18
    values: int = 1 << 22
    stops: int = 16
    stop_characters: int = 256
    running: int = 64
    waiting: int = 256
    connections: int = 1024
    request_seconds: float = 20.0
    stall_seconds: float = 15.0
    view_tokens: int = 1024
    view_bytes: int = 32 << 20
    views: int = 8

    def check(self, request: CompletionRequest, prompts: int) -> None:
        """Make sure that a request stays within them.

        Raises:
            APIError: it does not, or asks for something that this server does not support.
        """
        _at_most("max_tokens", request.max_tokens or 0, self.max_tokens)
        choices = prompts * (request.n or 1)
        _at_most("n", choices, self.choices, "completions, of all prompts")
        _at_most("logprobs", request.logprobs or 0, self.logprobs)
        if request.logprobs is not None:
            values = choices * (request.max_tokens or 0) * (1 + request.logprobs)
            _at_most("logprobs", values, self.logprob_values, "log-probabilities in all")
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        _at_most("stop", len(stops), self.stops, "stop strings")
        _at_most("stop", max(map(len, stops), default=0), self.stop_characters, "characters of a stop string")
        if request.stream_options is not None and not request.stream:
            raise APIError(400, "stream_options: it has an effect only with stream", "stream_options")
        if request.best_of is not None and request.best_of != (request.n or 1):
            raise APIError(400, "best_of: other values than that of n are not supported", "best_of")
        for name in ("suffix", "logit_bias", "presence_penalty", "frequency_penalty"):
            if getattr(request, name):
                raise APIError(400, f"{name}: it is not supported; leave it out", name)


def _at_most(param: str, value: int, limit: int, what: str = "") -> None:
    if value > limit:
        raise APIError(400, f"{param}: {value} {what}".rstrip() + f", more than this server's limit of {limit}", param)
