"""Requests and the times of their answers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Load:
    """Requests to send.

    Attributes:
        prompts: one for each request.
        tokens: to sample after each prompt; with the character tokenizer, one character each.
        temperature: of sampling.
        arrivals: open loop: seconds from the start at which each request is sent, whatever has been answered by then.
            Empty: closed loop.
        concurrency: closed loop: so many requests are always in flight.
    """

    prompts: Sequence[str]
    tokens: int
    temperature: float = 0.8
    arrivals: Sequence[float] = ()
    concurrency: int = 1


@dataclass
class Answer:
    """When a request was due, and when which number of its tokens arrived, in seconds of one clock."""

    sent: float
    arrived: list[tuple[float, int]] = field(default_factory=list)


def to_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return answers for `summarize_answers` in another process."""
    return {"answers": [asdict(answer) for answer in answers]}


def random_prompts(alphabet: Sequence[str], lengths: Sequence[int], count: int, seed: Sequence[int]) -> list[str]:
    """Return random texts, whose lengths are chosen at random from `lengths`."""
    random = np.random.default_rng(seed)
    return ["".join(random.choice(alphabet, size=random.choice(lengths))) for _ in range(count)]


def poisson_arrivals(rate: float, count: int, seed: Sequence[int]) -> list[float]:
    """Return the arrival times, in seconds, of a Poisson process with `rate` requests per second."""
    times: list[float] = np.random.default_rng(seed).exponential(1 / rate, count).cumsum().tolist()
    return times


def summarize_answers(rounds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the throughput of each round, and percentiles of the latencies of all, in milliseconds.

    Time to first token counts from when a request was due, so that a client that falls behind hides nothing. Tokens
    that arrive together share the time since those before them.
    """
    throughput, first, gaps = [], list[float](), [np.zeros(0)]
    for answers in rounds:
        parts = [np.array(answer["arrived"], dtype=np.float64) for answer in answers]  # (time, tokens) in each row
        seconds = max(part[-1, 0] for part in parts) - min(answer["sent"] for answer in answers)
        throughput.append(float(sum(part[:, 1].sum() for part in parts) / seconds))
        first += [part[0, 0] - answer["sent"] for part, answer in zip(parts, answers, strict=True)]
        gaps += [np.repeat(np.diff(part[:, 0]) / part[1:, 1], part[1:, 1].astype(int)) for part in parts]
    streamed = np.concatenate(gaps)
    return {
        "requests": sum(map(len, rounds)),
        "tokens_per_second": throughput,
        "first_token_ms": _percentiles(first),
        "inter_token_ms": _percentiles(streamed) if len(streamed) else None,
    }


def _percentiles(seconds: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    median, high = (np.percentile(seconds, (50, 99)) * 1000).tolist()
    return {"p50": median, "p99": high}
