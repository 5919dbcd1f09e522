"""`gpt explain shapes`: every tensor of a forward pass."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from typing import TYPE_CHECKING

from gpt.cli.command import report
from gpt.cli.explain.model_options import add_model_options, add_size_options, find_config, load_model, read_size
from gpt.cli.explain.text_options import read_ids
from gpt.cli.tables import print_view
from gpt.errors import ConfigError
from gpt.inspection.rendering.markdown import times
from gpt.inspection.rendering.tables import Table
from gpt.progress import announced

if TYPE_CHECKING:
    from torch import Tensor

    from gpt.inspection.tracing.shape_trace import TensorRow
    from gpt.model import GPT

SUMMARY = "Show every tensor of a forward pass, in the order of computation."
EXAMPLE = "--config reference_shapes"

LENGTH = 7
"""Number of tokens in a trace without a prompt: few enough to follow by hand."""
HEADER = ("tensor", "what it is", "axes", "shape", "type", "bytes", "FLOPs", "parameters read")
ALIGN = "<<<<<>><"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="trace this text through a trained model")
    add_size_options(parser, "1, or the prompt", f"{LENGTH}, or the prompt")
    parser.add_argument("--cached", action="store_true", help="trace the prefill of a cache, then one decode step")
    parser.add_argument("--all-layers", action="store_true", help="print all blocks, even those that equal the first")


def run(arguments: argparse.Namespace) -> None:
    model, idx, name = _read_source(arguments)
    from gpt.inspection.tracing.shape_trace import trace_cached, trace_shapes

    with announced(report, "tracing the forward pass"):
        if arguments.cached:
            passes = dict(zip(("prefill", "decode step"), trace_cached(model, idx), strict=True))
        else:
            passes = {"forward pass": trace_shapes(model, idx)}
    summary = {
        "source": name,
        "batch": idx.size(0),
        "seq": idx.size(1),
        **{title.replace(" ", "_"): [asdict(row) for row in rows] for title, rows in passes.items()},
    }
    print_view(
        arguments,
        f"{name}: {idx.size(0)} × {idx.size(1)} tokens",
        lambda: chain(*(_tables(title, rows, all_layers=arguments.all_layers) for title, rows in passes.items())),
        summary,
    )


def _read_source(arguments: argparse.Namespace) -> tuple["GPT", "Tensor", str]:
    """Return the model, the ids to trace and their source; without a prompt, on the meta device."""
    if arguments.prompt is not None and (arguments.batch is not None or arguments.seq is not None):
        raise ConfigError("--prompt determines the tokens; leave out --batch and --seq")
    if arguments.prompt is not None:
        for option in ("config", "published"):
            if getattr(arguments, option) is not None:
                raise ConfigError(
                    f"--prompt needs the tokenizer of a trained model; give --checkpoint, or --seq with --{option}"
                )
        loaded = load_model(arguments)
        return loaded.model, read_ids(arguments, loaded).unsqueeze(0), str(loaded.folder)
    config, source = find_config(arguments)
    batch, length = read_size(arguments, config, 1, min(LENGTH, config.model.block_size))

    import torch

    from gpt.model import GPT
    from gpt.model.meta import meta_device

    with meta_device():
        return GPT(config.model).eval(), torch.zeros(batch, length, dtype=torch.long), source


def _tables(title: str, rows: Sequence["TensorRow"], all_layers: bool) -> Iterator[Table]:
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
            yield Table(f"{title}, {'after' if first else 'before'} the blocks", HEADER, cells, ALIGN)
        elif first and cells == first and not all_layers:
            alike.append(layer)
        else:
            first = first or cells
            yield Table(f"{title}, block {layer} (h.{layer})", HEADER, cells, ALIGN)
    flops = sum(row.flops for row in rows)
    names = {use.name.removesuffix(".T"): use.count for row in rows for use in row.parameters}
    total = f"{len(rows)} tensors; {flops:,} FLOPs in matmuls, a multiply-add counted as two; "
    read = f"{sum(names.values()):,} parameters read"
    yield Table(f"{title}, in all", ("total",), [(total + read,)], "<", "bytes in brackets: a view of another tensor")


def _repeated(layers: Sequence[int], count: int) -> Table:
    span = f"block {layers[0]}" if len(layers) == 1 else f"blocks {layers[0]} to {layers[-1]}"
    return Table(f"{span}: same as block 0", ("tensors",), [(f"{count} each; --all-layers prints them",)], "<")


def _cells(row: "TensorRow") -> tuple[str, ...]:
    prefix = f"h.{row.layer}." if row.layer is not None else ""
    module = row.name.rsplit(".", 1)[0] + "."
    used = [f"{use.name.removeprefix(module)} {times(use.shape)}" for use in row.parameters]
    return (
        row.name.removeprefix(prefix),
        row.about,
        row.symbols,
        times(row.shape),
        row.dtype,
        f"({row.nbytes:,})" if row.is_view else f"{row.nbytes:,}",
        f"{row.flops:,}" if row.flops else "",
        ", ".join(used),
    )
