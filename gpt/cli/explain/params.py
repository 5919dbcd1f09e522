"""`gpt explain params`: the parameters of a model, by component and by tensor."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpt.cli.explain.model_options import add_model_options, find_config
from gpt.cli.tables import print_view
from gpt.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.accounting.parameters import ParameterCount

SUMMARY = "Count the parameters, by component and by tensor."
EXAMPLE = "--published gpt2"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor too")


def run(arguments: argparse.Namespace) -> None:
    config, source = find_config(arguments)

    from gpt.accounting.parameters import count_parameters

    count = count_parameters(config.model)
    components = [
        {"name": part.name, "per_block": part.per_block, "count": part.count, "share_percent": part.share}
        for part in count.components
    ]
    summary = {"source": source, "total": count.total, "tied": count.tied, "buffers": count.buffers}
    summary |= {"components": components, "tensors": [asdict(tensor) for tensor in count.tensors]}
    title = f"{source}: {count.total:,} parameters"
    print_view(arguments, title, lambda: _tables(count, config.model.n_layer, tensors=arguments.tensors), summary)


def _tables(count: "ParameterCount", blocks: int, *, tensors: bool) -> Iterator[Table]:
    from gpt.inspection.rendering.model_tables import component_table

    yield component_table(count, blocks)
    if tensors:
        rows = [(one.name, " x ".join(f"{size:,}" for size in one.shape), f"{one.count:,}") for one in count.tensors]
        yield Table("Parameter tensors", ("name", "shape", "parameters"), rows, "<>>")
