"""What a decode measurement found, as a table and for JSON."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpt.cache import cache_bytes
from gpt.cli.bench.spread import percentile, ratios, show_ratios
from gpt.cli.tables import Table
from gpt.config import ModelConfig
from gpt.inspection.flops import decode_flops

NOTE = (
    "Tokens/s: of all texts together, the median of all rounds, first token included. First: until every text has its\n"
    "first token. Slowest: of a hundred waits for a token, where it can be seen. Read: matrices, keys and values that\n"
    "a step needs, a second. Share: of what a matrix-vector product over as many bytes reads here. Arithmetic: FLOP/s\n"
    "over the rate of a square float32 product. Times: how many times the first row is as quick, round by round:\n"
    "median, and lowest to highest round."
)


@dataclass(frozen=True)
class DecodeSetting:
    """What all rows share.

    Attributes:
        name: of the model.
        prompt: token ids before the first drawn one.
        config: of the model.
        batch: texts at once.
        tokens: drawn for each.
        rate: FLOP/s of a square float32 product.
    """

    name: str
    prompt: Sequence[int]
    config: ModelConfig
    batch: int
    tokens: int
    rate: float

    @property
    def cache_bytes_per_step(self) -> int:
        """Of keys and values, read for one token of every text, on average."""
        return cache_bytes(self.config, self.batch, self._keys, "fp32")

    @property
    def flops_per_step(self) -> int:
        """Of one token of every text, on average."""
        return decode_flops(self.config, self.batch, self._keys)

    @property
    def _keys(self) -> int:
        return min(len(self.prompt) + self.tokens // 2, self.config.block_size)


@dataclass
class Timings:
    """Of one entrant, a number a round.

    Attributes:
        weights: float32, bf16, int8 or int4.
        bytes_per_step: of matrices, keys and values that are read for one token of every text, on average.
        bandwidth: bytes/s of a matrix-vector product over as many bytes.
        seconds: of the whole text.
        first: until the first token; None where it cannot be seen.
        waits: seconds between tokens, of all rounds.
    """

    weights: str
    bytes_per_step: int
    bandwidth: float
    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def add(self, ticks: Sequence[float]) -> None:
        """A round: when it began, when each token came, and when it ended."""
        self.seconds.append(ticks[-1] - ticks[0])
        tokens = ticks[1:-1]
        if tokens:
            self.first.append(tokens[0] - ticks[0])
            self.waits += [after - before for before, after in itertools.pairwise(tokens)]


def table_of(setting: DecodeSetting, timings: Mapping[str, Timings]) -> Table:
    """A line for each entrant."""
    first = next(iter(timings.values()))
    rows = []
    for name, timing in timings.items():
        result = _result(setting, timing)
        rows.append(
            (
                name,
                f"{result['tokens_per_second']:,.0f}",
                _milliseconds(result["first_seconds"]),
                _milliseconds(result["slowest_wait_seconds"]),
                f"{result['bytes_per_second'] / 1e9:.1f} GB/s",
                f"{result['bandwidth_share']:.1%}",
                f"{result['arithmetic_share']:.1%}",
                show_ratios(ratios(first.seconds, timing.seconds)),
            )
        )
    header = ("", "tokens/s", "first ms", "slowest ms", "read", "share", "arithmetic", "times")
    title = f"{setting.name}, window {setting.config.block_size}, {setting.batch} x {setting.tokens} tokens"
    return Table(title, header, rows, "<>>>>>>>")


def summary_of(setting: DecodeSetting, timings: Mapping[str, Timings]) -> dict[str, Any]:
    """The same for JSON."""
    first = next(iter(timings.values()))
    return {
        "model": setting.name,
        "window": setting.config.block_size,
        "batch": setting.batch,
        "tokens": setting.tokens,
        "float32_flops_per_second": setting.rate,
        "rows": {
            name: {
                **_result(setting, timing),
                "seconds": timing.seconds,
                "times": ratios(first.seconds, timing.seconds),
            }
            for name, timing in timings.items()
        },
    }


def _result(setting: DecodeSetting, timing: Timings) -> dict[str, Any]:
    seconds = statistics.median(timing.seconds)
    steps = setting.tokens / seconds
    return {
        "weights": timing.weights,
        "tokens_per_second": steps * setting.batch,
        "first_seconds": statistics.median(timing.first) if timing.first else None,
        "slowest_wait_seconds": percentile(timing.waits, 0.99) if timing.waits else None,
        "bytes_per_second": steps * timing.bytes_per_step,
        "bandwidth_share": steps * timing.bytes_per_step / timing.bandwidth,
        "arithmetic_share": steps * setting.flops_per_step / setting.rate,
    }


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.2f}"
