"""What a decode measurement found, as a table and for JSON."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.spread import percentile, ratios, show_ratios
from gpt.accounting.flops import decode_flops, flops_by_part
from gpt.cache import cache_bytes
from gpt.cli.tables import Table
from gpt.config import ModelConfig

NOTE = (
    "Tokens/s: sampled tokens of all sequences, median of all rounds, first token included. Prompt/s: tokens of the\n"
    "prompts, until every sequence has its first token. Slowest: of a hundred waits for a token, where it can be\n"
    "seen. Read: matrices, keys and values that a step needs, a second. Share: of what a matrix-vector product over\n"
    "as many bytes reads here. Arithmetic: FLOP/s over the rate of a square float32 matmul. Times: how many times our\n"
    "first row (for a peer: our first row whose weights have as many bits) is as fast, round by round: median, and\n"
    "lowest to highest round."
)


@dataclass(frozen=True)
class DecodeSetting:
    """What all rows share.

    Attributes:
        name: of the model.
        prompt: tokens before the first sampled one.
        config: of the model.
        batch: sequences at once.
        tokens: sampled for each.
        rate: FLOP/s of a square float32 matmul.
    """

    name: str
    prompt: int
    config: ModelConfig
    batch: int
    tokens: int
    rate: float

    @property
    def cache_bytes_per_step(self) -> int:
        """Of keys and values, read for one token of every sequence, on average."""
        return cache_bytes(self.config, self.batch, self._keys, "fp32")

    @property
    def flops(self) -> int:
        """Of the prompts and of all sampled tokens but the last; the head is applied where a token is sampled only."""
        parts = flops_by_part(self.config, self.batch, self.prompt, self.prompt)
        prefill = parts["linear_layers"] + parts["attention"] + parts["head"] // self.prompt
        return prefill + (self.tokens - 1) * decode_flops(self.config, self.batch, self._keys)

    @property
    def _keys(self) -> int:
        return min(self.prompt + self.tokens // 2, self.config.block_size)


@dataclass
class Timings:
    """Of one entrant, a number a round.

    Attributes:
        weights: float32, bf16, int8 or int4.
        is_peer: whether it is not this package.
        bytes_per_step: of matrices, keys and values that are read for one token of every sequence, on average.
        bandwidth: bytes/s of a matrix-vector product over as many bytes.
        seconds: of the whole sequences.
        first: until the first token; None where it cannot be seen.
        waits: seconds between tokens, of all rounds.
        about: version and choices of a peer.
    """

    weights: str
    is_peer: bool
    bytes_per_step: int
    bandwidth: float
    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    about: str = ""

    def add(self, ticks: Sequence[float]) -> None:
        """A round: when it began, when each token came, and when it ended."""
        self.seconds.append(ticks[-1] - ticks[0])
        tokens = ticks[1:-1]
        if tokens:
            self.first.append(tokens[0] - ticks[0])
            self.waits += [after - before for before, after in itertools.pairwise(tokens)]


def baseline_of(name: str, timings: Mapping[str, Timings]) -> str:
    """The row of ours that a row is compared with: the first, for a peer the first whose weights have as many bits."""
    ours = [other for other, timing in timings.items() if not timing.is_peer]
    if timings[name].is_peer:
        ours = [other for other in ours if timings[other].weights == timings[name].weights] or ours
    return ours[0]


def table_of(setting: DecodeSetting, timings: Mapping[str, Timings]) -> Table:
    """A line for each entrant."""
    first = next(iter(timings))
    rows = []
    for name, row in summary_of(setting, timings)["rows"].items():
        than = "" if row["times_of"] == first else f" of {row['times_of']}"
        prompt = row["prompt_tokens_per_second"]
        rows.append(
            (
                name,
                f"{row['tokens_per_second']:,.0f}",
                "" if prompt is None else f"{prompt:,.0f}",
                _milliseconds(row["first_seconds"]),
                _milliseconds(row["slowest_wait_seconds"]),
                f"{row['bytes_per_second'] / 1e9:.1f} GB/s",
                f"{row['bandwidth_share']:.1%}",
                f"{row['arithmetic_share']:.1%}",
                f"{show_ratios(row['times'])}{than}",
            )
        )
    header = ("", "tokens/s", "prompt/s", "first ms", "slowest ms", "read", "share", "arithmetic", "times")
    size = f"{setting.batch} x ({setting.prompt} + {setting.tokens}) tokens"
    return Table(f"{setting.name}, window {setting.config.block_size}, {size}", header, rows, "<>>>>>>><")


def summary_of(setting: DecodeSetting, timings: Mapping[str, Timings]) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "model": setting.name,
        "window": setting.config.block_size,
        "batch": setting.batch,
        "prompt": setting.prompt,
        "tokens": setting.tokens,
        "float32_flops_per_second": setting.rate,
        "rows": {name: _row(setting, name, timings) for name in timings},
    }


def _row(setting: DecodeSetting, name: str, timings: Mapping[str, Timings]) -> dict[str, Any]:
    timing, baseline = timings[name], baseline_of(name, timings)
    seconds = statistics.median(timing.seconds)
    steps = setting.tokens / seconds
    first = timing.first or (timing.seconds if setting.tokens == 1 else [])
    times = ratios(timings[baseline].seconds, timing.seconds)
    return {
        "weights": timing.weights,
        "about": timing.about,
        "tokens_per_second": steps * setting.batch,
        "prompt_tokens_per_second": setting.batch * setting.prompt / statistics.median(first) if first else None,
        "first_seconds": statistics.median(first) if first else None,
        "slowest_wait_seconds": percentile(timing.waits, 0.99) if timing.waits else None,
        "bytes_per_second": steps * timing.bytes_per_step,
        "bandwidth_share": steps * timing.bytes_per_step / timing.bandwidth,
        "arithmetic_share": setting.flops / seconds / setting.rate,
        "seconds": timing.seconds,
        "times_of": baseline,
        "times": times,
        "times_median": statistics.median(times),
        "times_lowest": min(times),
        "times_highest": max(times),
    }


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.2f}"
