"""What a step measurement found, as a table and for JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.spread import ratios, show_ratios, spread_of
from benchmarks.workers import Answer
from gpt.accounting.flops import training_flops
from gpt.cli.tables import Table, human_bytes, human_count
from gpt.config import Config, ModelConfig

Rates = Mapping[str, Mapping[int, float]]
"""FLOP/s of square matrix products, by type and size."""

NOTE = (
    "ms: median step, batches included, and 10th to 90th percentile. Share: FLOP/s of the step's products, over the\n"
    "best measured rate in its own type and in float32. Memory: peak over what the process had before its model, and\n"
    "whole. Times: step time over that of the first row, round by round: median, and lowest to highest round."
)


@dataclass(frozen=True)
class StepSetting:
    """What all rows share.

    Attributes:
        config: resolved: `model.vocab_size` is set.
        rates: of the machine.
    """

    config: Config
    rates: Rates

    @property
    def sequences(self) -> int:
        """Rows of one step."""
        return self.config.train.batch_size * self.config.train.grad_accum_steps

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.sequences * self.config.model.block_size

    def flops(self, is_peer: bool) -> int:
        """Model FLOPs of one step."""
        model = gpt2_shape(self.config.model) if is_peer else self.config.model
        return training_flops(model, self.sequences, model.block_size)

    def best_rate(self, dtype: str) -> float:
        """FLOP/s in that type, at the size where it is highest."""
        return max(self.rates[dtype].values())


def gpt2_shape(config: ModelConfig) -> ModelConfig:
    """The model as the peers have it: same layers, heads and widths, but GPT-2's parts."""
    keys = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "dropout")
    return ModelConfig(**{key: getattr(config, key) for key in keys})


def summary_of(setting: StepSetting, answers: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """For JSON: each row by name, the first one being what the others are compared with."""
    medians = {name: [statistics.median(turn.milliseconds) for turn in turns] for name, turns in answers.items()}
    baseline = next(iter(medians))
    return {
        "tokens_per_step": setting.tokens,
        "matmul_flops_per_second": {dtype: dict(by_size) for dtype, by_size in setting.rates.items()},
        "baseline": baseline,
        "variants": {
            name: {**_row(setting, name, turns), "times_slower": ratios(medians[baseline], medians[name])}
            for name, turns in answers.items()
        },
    }


def _row(setting: StepSetting, name: str, turns: Sequence[Answer]) -> dict[str, Any]:
    last = turns[-1]
    milliseconds = [one for turn in turns for one in turn.milliseconds]
    spread = spread_of(milliseconds)
    seconds = spread.median / 1000
    flops = setting.flops(is_peer(name))
    return {
        "dtype": last.dtype,
        "blocks": last.blocks,
        "parameters": last.parameters,
        "milliseconds": asdict(spread),
        "round_medians": [statistics.median(turn.milliseconds) for turn in turns],
        "tokens_per_second": setting.tokens / seconds,
        "model_flops": flops,
        "share_of_matmul_rate": flops / seconds / setting.best_rate(last.dtype),
        "share_of_float32_rate": flops / seconds / setting.best_rate("float32"),
        "peak_bytes": last.peak_bytes,
        "peak_bytes_over_start": last.peak_bytes - last.before_bytes,
    }


def is_peer(name: str) -> bool:
    """Whether a row is not this package."""
    return name.startswith(("Hugging Face", "nanoGPT"))


def table_of(setting: StepSetting, title: str, answers: Mapping[str, Sequence[Answer]]) -> Table:
    """The rows side by side."""
    summary = summary_of(setting, answers)
    rows = []
    for name, row in summary["variants"].items():
        ms = row["milliseconds"]
        rows.append(
            (
                name,
                f"{row['blocks']} {row['dtype']}",
                f"{ms['median']:.1f}",
                f"{ms['low']:.1f}-{ms['high']:.1f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['share_of_matmul_rate']:.1%}",
                f"{row['share_of_float32_rate']:.1%}",
                human_bytes(row["peak_bytes_over_start"]),
                human_bytes(row["peak_bytes"]),
                show_ratios(row["times_slower"]),
            )
        )
    header = ("variant", "blocks", "ms", "10-90%", "tokens/s", "share", "of fp32", "memory", "whole", "times")
    heading = f"{title}: one step, {setting.tokens:,} tokens, {human_count(setting.flops(False), 'FLOP')}"
    return Table(heading, header, rows, "<<>>>>>>>>", NOTE)


def rates_table(rates: Rates) -> Table:
    """What the machine multiplies at, by size."""
    sizes = next(iter(rates.values())).keys()
    rows = [
        (dtype, *(human_count(by_size[size]) for size in sizes), str(max(by_size, key=by_size.__getitem__)))
        for dtype, by_size in rates.items()
    ]
    header = ("type", *(str(size) for size in sizes), "best")
    return Table("Square matrix products, FLOP/s by size", header, rows, "<" + ">" * (len(sizes) + 1))
