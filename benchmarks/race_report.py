"""What a race found, as a table and for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.spread import ratios, show_ratios, spread_of
from gpt.cli.tables import Table

NOTE = (
    "Seconds: whole processes in turns, compiled code not cached before, data prepared before; times: over the first.\n"
    "Loss: whole validation split in float32, nats per token, one judge: in blocks of a size that all can read,\n"
    "and in blocks as long as each model's own window. Of the last weights; nanoGPT keeps those it finds best."
)


@dataclass(frozen=True)
class Finish:
    """One finished process.

    Attributes:
        seconds: wall time.
        loss: in blocks of the size that all contenders can read.
        own_loss: in blocks of `block_size`.
        block_size: longest the model can read.
    """

    seconds: float
    loss: float
    own_loss: float
    block_size: int


def summary_of(finishes: Mapping[str, Sequence[Finish]]) -> dict[str, Any]:
    """For JSON: each contender by name; the first is compared with the others."""
    seconds = {name: [one.seconds for one in ones] for name, ones in finishes.items()}
    baseline = next(iter(seconds))
    return {
        "compile_cache": "cold",
        "baseline": baseline,
        "contenders": {
            name: {
                "seconds": asdict(spread_of(seconds[name])),
                "loss": asdict(spread_of([one.loss for one in ones])),
                "times_slower": ratios(seconds[baseline], seconds[name]),
                "runs": [asdict(one) for one in ones],
            }
            for name, ones in finishes.items()
        },
    }


def table_of(title: str, finishes: Mapping[str, Sequence[Finish]]) -> Table:
    """A row for each contender: means, and ratios round by round."""
    summary = summary_of(finishes)["contenders"]
    rows = [
        (
            name,
            f"{summary[name]['seconds']['mean']:.1f}",
            show_ratios(summary[name]["times_slower"]),
            f"{summary[name]['loss']['mean']:.4f}",
            f"{spread_of([one.own_loss for one in ones]).mean:.4f}",
            str(ones[0].block_size),
        )
        for name, ones in finishes.items()
    ]
    header = ("recipe", "seconds", "times", "loss", "own blocks", "of")
    return Table(title, header, rows, "<>>>>>", NOTE)
