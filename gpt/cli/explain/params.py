"""`scripts/explain.py params`: the parameters of a model, by component and by tensor."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpt.cli.command import add_command
from gpt.cli.explain.model_options import NamedConfig, add_model_options, find_config
from gpt.cli.tables import add_format_options, print_view
from gpt.inspection.rendering.tables import Table

if TYPE_CHECKING:
    from gpt.accounting.parameters import ParameterCount


def add_parser(subparsers: Any) -> None:
    """Add this view and its options."""
    parser = add_command(
        subparsers,
        "params",
        "Count the parameters, by component and by tensor.",
        "python scripts/explain.py params --published gpt2",
    )
    add_model_options(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor too")
    add_format_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Count the parameters and show them."""
    named = find_config(arguments)

    from gpt.accounting.memory_limits import require_countable
    from gpt.accounting.parameters import count_parameters

    require_countable(named.config.model)
    count = count_parameters(named.config.model)
    print_view(
        arguments,
        f"{named.source}: {count.total:,} parameters",
        lambda: _tables(count, named.config.model.n_layer, tensors=arguments.tensors),
        _summary(named, count),
    )


def _tables(count: "ParameterCount", blocks: int, *, tensors: bool) -> Iterator[Table]:
    from gpt.inspection.rendering.model_tables import component_table

    yield component_table(count, blocks)
    if tensors:
        yield _tensor_table(count)


def _tensor_table(count: "ParameterCount") -> Table:
    rows = [
        (tensor.name, " x ".join(f"{size:,}" for size in tensor.shape), f"{tensor.count:,}") for tensor in count.tensors
    ]
    return Table("Parameter tensors", ("name", "shape", "parameters"), rows, "<>>")


def _summary(named: NamedConfig, count: "ParameterCount") -> dict[str, Any]:
    return {
        "source": named.source,
        "total": count.total,
        "tied": count.tied,
        "buffers": count.buffers,
        "components": [
            {"name": part.name, "per_block": part.per_block, "count": part.count, "share_percent": part.share}
            for part in count.components
        ],
        "tensors": [asdict(tensor) for tensor in count.tensors],
    }
