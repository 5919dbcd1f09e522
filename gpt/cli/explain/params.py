"""`gpt explain params`: the parameters of a model, by component and by tensor."""

import argparse
from dataclasses import asdict

from gpt.cli.explain.options import add_model_options, find_config
from gpt.cli.tables import print_view

SUMMARY = "Count the parameters, by component and by tensor."
EXAMPLE = "--published gpt2"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> None:
    config, source = find_config(arguments)

    from gpt.extras.accounting.parameters import count_parameters
    from gpt.extras.inspection.rendering.model_tables import component_table

    count = count_parameters(config.model)
    components = [
        {
            "name": component.name,
            "per_block": component.per_block,
            "count": component.count,
            "share_percent": component.share,
        }
        for component in count.components
    ]
    summary = {
        "source": source,
        "total": count.total,
        "tied": count.tied,
        "buffers": count.buffers,
        "components": components,
        "tensors": [asdict(tensor) for tensor in count.tensors],
    }
    title = f"{source}: {count.total:,} parameters"
    print_view(arguments, title, [component_table(count, config.model.n_layer)], summary)
