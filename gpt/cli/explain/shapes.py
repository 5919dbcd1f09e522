"""`gpt explain shapes`: every tensor of a forward pass."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.explain.options import add_model_options, add_size_options, find_config, read_size
from gpt.cli.tables import print_view
from gpt.extras.inspection.rendering.tables import Table
from gpt.system.progress import announced

if TYPE_CHECKING:
    from gpt.extras.inspection.tracing.shape_trace import TensorRow

SUMMARY = "Show every tensor of a forward pass, in the order of computation."
EXAMPLE = "--config reference_shapes"

LENGTH = 7
"""Number of tokens: few enough to follow by hand."""
HEADER = ("tensor", "what it is", "axes", "shape", "type", "bytes", "FLOPs", "parameters read")
ALIGN = "<<<<<>><"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_size_options(parser, "1", str(LENGTH))


def run(arguments: argparse.Namespace) -> None:
    config, name = find_config(arguments)
    batch, length = read_size(arguments, config, 1, min(LENGTH, config.model.block_size))

    import torch

    from gpt.extras.inspection.tracing.shape_trace import trace_shapes
    from gpt.model import GPT
    from gpt.system.device import meta_device

    with meta_device():
        model, idx = GPT(config.model).eval(), torch.zeros(batch, length, dtype=torch.long)
    with announced(report, "tracing the forward pass"):
        rows = trace_shapes(model, idx)
    summary = {
        "source": name,
        "batch": batch,
        "seq": length,
        "forward_pass": [asdict(row) for row in rows],
    }
    print_view(arguments, f"{name}: {batch} × {length} tokens", _tables(rows), summary)


def _tables(rows: Sequence["TensorRow"]) -> Iterator[Table]:
    """Yield a table before the blocks, one for each block that differs from the first, one after them, and totals."""
    first: list[tuple[str, ...]] = []
    alike: list[int] = []
    for layer, group in groupby(rows, key=lambda row: row.layer):
        members = list(group)
        cells = [_cells(row) for row in members]
        if layer is None:
            if alike:
                yield _repeated(alike, len(first))
                alike = []
            yield Table(f"{'After' if first else 'Before'} the blocks", HEADER, cells, ALIGN)
        elif first and cells == first:
            alike.append(layer)
        else:
            first = first or cells
            yield Table(f"Block {layer} (h.{layer})", HEADER, cells, ALIGN)
    flops = sum(row.flops for row in rows)
    names = {use.name.removesuffix(".T"): use.count for row in rows for use in row.parameters}
    total = f"{len(rows)} tensors; {flops:,} FLOPs in matmuls, a multiply-add counted as two; "
    read = f"{sum(names.values()):,} parameters read"
    yield Table(
        "In all", ("total",), [(total + read,)], "<", "bytes in brackets: a view of another tensor"
    )


def _repeated(layers: Sequence[int], count: int) -> Table:
    span = f"Block {layers[0]}" if len(layers) == 1 else f"Blocks {layers[0]} to {layers[-1]}"
    return Table(f"{span}: same as block 0", ("tensors",), [(f"{count} each",)], "<")


def _times(shape: Sequence[int]) -> str:
    """Return a shape such as `1×7×64`."""
    return "×".join(map(str, shape))


def _cells(row: "TensorRow") -> tuple[str, ...]:
    prefix = f"h.{row.layer}." if row.layer is not None else ""
    module = row.name.rsplit(".", 1)[0] + "."
    used = [f"{use.name.removeprefix(module)} {_times(use.shape)}" for use in row.parameters]
    return (
        row.name.removeprefix(prefix),
        row.about,
        row.symbols,
        _times(row.shape),
        row.dtype,
        f"({row.nbytes:,})" if row.is_view else f"{row.nbytes:,}",
        f"{row.flops:,}" if row.flops else "",
        ", ".join(used),
    )
