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
from gpt.system.progress import announce_if_slow

if TYPE_CHECKING:
    from gpt.extras.inspection.tracing.shape_trace import TensorRow

SUMMARY = "Show every tensor of a forward pass, in the order of computation."
EXAMPLE = "--config reference_shapes"

DEFAULT_LENGTH = 7
"""Number of tokens: few enough to follow by hand."""
HEADER = ("tensor", "what it is", "axes", "shape", "type", "bytes", "FLOPs", "parameters read")
"""Columns of the tables, in the order of `_cells`."""
ALIGN = "<<<<<>><"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_size_options(parser, "1", str(DEFAULT_LENGTH))


def run(arguments: argparse.Namespace) -> None:
    config, name = find_config(arguments)
    default_length = min(DEFAULT_LENGTH, config.model.block_size)
    batch, length = read_size(arguments, config, batch=1, length=default_length)

    import torch

    from gpt.extras.inspection.tracing.shape_trace import trace_shapes
    from gpt.model import GPT
    from gpt.system.device import meta_device

    with meta_device():  # shapes need no memory
        model = GPT(config.model).eval()
        idx = torch.zeros(batch, length, dtype=torch.long)
    with announce_if_slow(report, "tracing the forward pass"):
        rows = trace_shapes(model, idx)
    title = f"{name}: {batch} × {length} tokens"
    forward_pass = [asdict(row) for row in rows]
    summary = {"source": name, "batch": batch, "seq": length, "forward_pass": forward_pass}
    print_view(arguments, title, _tables(rows), summary)


def _tables(rows: Sequence["TensorRow"]) -> Iterator[Table]:
    """Yield a table before the blocks, tables of the blocks, a table after them, and the totals.

    A block that has the same tensors as the first is only counted.
    """
    first_block: list[tuple[str, ...]] = []
    alike: list[int] = []  # the blocks like the first, which come one after another
    for layer, group in groupby(rows, key=lambda row: row.layer):
        cells = [_cells(row) for row in group]
        if layer is None:
            if alike:
                yield _repeated_blocks(alike, len(first_block))
                alike = []
            place = "After" if first_block else "Before"
            yield Table(f"{place} the blocks", HEADER, cells, ALIGN)
        elif cells == first_block:
            alike.append(layer)
        else:
            if not first_block:
                first_block = cells
            yield Table(f"Block {layer} (h.{layer})", HEADER, cells, ALIGN)
    yield _totals(rows)


def _repeated_blocks(layers: Sequence[int], tensors: int) -> Table:
    """Return a table that says which blocks have the same tensors as block 0."""
    blocks = f"Block {layers[0]}"
    if len(layers) > 1:
        blocks = f"Blocks {layers[0]} to {layers[-1]}"
    return Table(f"{blocks}: same as block 0", ("tensors",), [(f"{tensors} each",)], "<")


def _totals(rows: Sequence["TensorRow"]) -> Table:
    """Return a table of one cell: how many tensors, FLOPs and parameters there are."""
    flops = sum(row.flops for row in rows)
    # By name, since a tied matrix is read twice: as the embedding, and transposed (.T) as the head.
    counts = {}
    for row in rows:
        for use in row.parameters:
            counts[use.name.removesuffix(".T")] = use.count
    total = (
        f"{len(rows)} tensors; {flops:,} FLOPs in matmuls, a multiply-add counted as two; "
        f"{sum(counts.values()):,} parameters read"
    )
    note = "bytes in brackets: a view of another tensor"
    return Table("In all", ("total",), [(total,)], "<", note)


def _format_shape(shape: Sequence[int]) -> str:
    """Return a shape such as `1×7×64`."""
    return "×".join(map(str, shape))


def _cells(row: "TensorRow") -> tuple[str, ...]:
    """Return the cells of a tensor, with names inside of its block and its module."""
    block = "" if row.layer is None else f"h.{row.layer}."
    module = row.name.rsplit(".", 1)[0] + "."
    parameters = []
    for use in row.parameters:
        name = use.name.removeprefix(module)
        parameters.append(f"{name} {_format_shape(use.shape)}")
    return (
        row.name.removeprefix(block),
        row.about,
        row.symbols,
        _format_shape(row.shape),
        row.dtype,
        f"({row.nbytes:,})" if row.is_view else f"{row.nbytes:,}",
        f"{row.flops:,}" if row.flops else "",
        ", ".join(parameters),
    )
