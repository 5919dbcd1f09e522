"""`gpt explain scaling`: the time and memory of training on many devices, on paper."""

import argparse
from typing import TYPE_CHECKING, Any

from gpt.cli.command import report
from gpt.cli.explain.model_options import add_model_options, add_size_options, find_config, read_size
from gpt.cli.shared_options import number
from gpt.cli.tables import human_bytes, print_view
from gpt.errors import ConfigError
from gpt.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.accounting.clusters import Cluster, StepTime
    from gpt.accounting.memory import TrainingMemory
    from gpt.accounting.parallel import Method

SUMMARY = "Bound the time and memory of training on 1 to 64 devices, each with the same batch."
EXAMPLE = "--published gpt2-xl --batch 8 --cluster dgx-h100"

DEVICES = (1, 2, 8, 16, 64)
METHODS: tuple["Method", ...] = ("ddp", "fsdp")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_size_options(parser)
    parser.add_argument("--cluster", default="dgx-h100", metavar="NAME", help="devices and links (default: dgx-h100)")
    for option, default, meaning in (
        ("--utilization", 0.4, "share of the peak rate that matmuls reach"),
        ("--link-utilization", 0.8, "share of the bandwidth that links reach"),
    ):
        share, help_text = number(0, 1, float, above=True), f"{meaning} (default: {default})"
        parser.add_argument(option, type=share, default=default, metavar="SHARE", help=help_text)


def run(arguments: argparse.Namespace) -> None:
    config, source = find_config(arguments)
    batch, length = read_size(arguments, config)

    import torch

    from gpt.accounting.clusters import CLUSTERS, hiding_batch, step_time
    from gpt.accounting.memory_limits import require_countable
    from gpt.device import Compute
    from gpt.training.fitting import predict_memory

    if arguments.cluster not in CLUSTERS:
        raise ConfigError(f"--cluster {arguments.cluster}: expected one of {', '.join(CLUSTERS)}")
    cluster = CLUSTERS[arguments.cluster]
    require_countable(config.model, batch, length)
    report("counting the bytes of a training step: a few seconds")
    fused = {"attention": "sdpa", "attention_dropout": 0.0}  # on a CPU, dropout would keep whole matrices of weights
    config = config.model_copy(update={"model": config.model.model_copy(update=fused)})
    memory = predict_memory(config, batch, length, Compute(torch.device("cpu"), torch.bfloat16))
    reached = cluster.reaching(arguments.utilization, arguments.link_utilization)
    model, optimizer = config.model, config.optim.name
    rows: dict[str, list[dict[str, Any]]] = {}
    hiding: dict[str, int | None] = {}
    alone = step_time(model, optimizer, METHODS[0], 1, batch, length, reached)
    for method in METHODS:
        times = [step_time(model, optimizer, method, count, batch, length, reached) for count in DEVICES]
        rows[method] = [_row(time, alone, memory) for time in times]
        hiding[method] = hiding_batch(model, optimizer, method, DEVICES[-1], length, reached)
    print_view(
        arguments,
        f"{source}, {batch:,} × {length:,} tokens on each device of {arguments.cluster}",
        lambda: [_table(method, rows[method], hiding[method], cluster, arguments) for method in METHODS],
        {"source": source, "batch": batch, "seq": length, "cluster": arguments.cluster, "hiding_batch": hiding, **rows},
    )


def _row(time: "StepTime", alone: "StepTime", memory: "TrainingMemory") -> dict[str, Any]:
    step = time.step
    return {
        "devices": step.processes,
        "memory": step.held + memory.buffers + memory.activations + step.whole,
        "sent": step.sent,
        "computing": time.computing,
        "sending": time.sending,
        "exposed": time.exposed,
        "efficiency": alone.computing / time.seconds,
    }


def _table(
    method: str, rows: list[dict[str, Any]], hiding: int | None, cluster: "Cluster", arguments: argparse.Namespace
) -> Table:
    cells = [
        (
            f"{row['devices']:,}",
            human_bytes(row["memory"]) + ("" if row["memory"] <= cluster.memory else " !"),
            human_bytes(row["sent"]),
            *(_milliseconds(row[name]) for name in ("computing", "sending", "exposed")),
            f"{100 * row['efficiency']:.0f} %",
        )
        for row in rows
    ]
    least = "no number of" if hiding is None else f"{hiding:,} or more"
    note = f"With {least} sequences on each of {DEVICES[-1]} devices, they wait for less than 5% of a step."
    if method == METHODS[-1]:
        note += (
            f"\n!: more than {human_bytes(cluster.memory)}. {cluster.source}.\n"
            f"Matmuls reach {arguments.utilization:.0%} of the peak, links {arguments.link_utilization:.0%}. Attention "
            "is fused. Latencies, scratch\nmemory and Muon's own matmuls are neglected."
        )
    header = ("devices", "memory of one", "sends", "computes, ms", "sends, ms", "waits, ms", "efficiency")
    titles = {"ddp": "DDP: whole models, gradients averaged", "fsdp": "FSDP2: weights, gradients and moments sharded"}
    return Table(titles[method], header, cells, ">>>>>>>", note)


def _milliseconds(seconds: float) -> str:
    """Return milliseconds with three digits; those of a few bytes are none."""
    number = 1000 * seconds
    return "0" if number < 0.001 else f"{number:.3g}" if number < 1000 else f"{number:,.0f}"
